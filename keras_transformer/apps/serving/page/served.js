/** The page of `serve`: it asks the export's signatures for what is typed, and shows what comes. */

import { AttentionMap } from "./attention.js";
import { copy, debounced, element, nameOf, offer, replaceIfChanged, said, scored, showLanguages, tell } from "./page.js";

const [source, target, correction, note, way, count, prefix, temperature] = [
  "source", "target", "correction", "note", "way", "count", "prefix", "temperature",
].map(element);
const paragraph = target.firstElementChild;
const map = new AttentionMap(element("map"));

let model = null; // What page.json says.
let seed = 0;
let question = ""; // The newest one, or why there is none.
let isAsking = false;
let found = []; // Translations.
let chosen = 0;
let aligned = null; // The likeliest translation, and what its pieces look at.

const soon = debounced(translate);
for (const field of [source, count, prefix, temperature]) field.addEventListener("input", soon);
for (const field of [way, temperature]) field.addEventListener("input", showControls);
way.addEventListener("change", translate);
element("redraw").addEventListener("click", () => {
  seed += Number(count.max);
  translate();
});
element("clear").addEventListener("click", () => {
  source.value = "";
  source.focus();
  translate();
});
element("copy").addEventListener("click", ({ target: button }) => copy(paragraph.textContent, button));
element("correct").addEventListener("click", () => {
  correction.value = paragraph.textContent;
  tell(note, "");
  showEditor(true);
  correction.focus();
});
element("keep").addEventListener("click", keep);
element("cancel").addEventListener("click", closeEditor);
correction.addEventListener("keydown", ({ key }) => key === "Escape" && closeEditor());
element("by").addEventListener("change", ({ target: { value } }) => map.showBy(value));
element("again").addEventListener("click", start);
showControls();
start();

async function start() {
  const answer = await answerOf("page.json");
  if (answer.error !== undefined) return;
  model = answer;
  element("name").textContent = `${model.name}, version ${model.version},`;
  if (model.languages) {
    const [title, sourceName] = ["title", "source-name"].map(element);
    showLanguages(model.languages, { title, sourceName, source });
    const [from, to] = model.languages;
    element("target-name").textContent = nameOf(to);
    target.lang = correction.lang = prefix.lang = to;
    map.languages = { source: from, target: to };
  }
  offer(model.examples, source.lang, (text) => {
    source.value = text;
    translate();
  });
  document.body.dataset.ready = "true";
  translate();
}

/** Shows the controls of a search, or those of drawing. */
function showControls() {
  for (const one of document.querySelectorAll(".search")) one.hidden = way.value !== "search";
  for (const one of document.querySelectorAll(".draw")) one.hidden = way.value !== "draw";
  element("degrees").textContent = Number(temperature.value).toFixed(1);
}

/** Returns a signature and its rows, or why nothing is asked. */
function readQuestion() {
  const text = source.value;
  if (text.trim() === "") return "";
  if (count.value === "" || !count.checkValidity()) {
    return `How many must be a whole number from ${count.min} to ${count.max}.`;
  }
  const most = Number(count.value);
  if (way.value === "draw") {
    const degrees = Number(temperature.value);
    const rows = Array.from({ length: most }, (_, place) => ({ text, temperature: degrees, seed: seed + place }));
    return { signature: "sample", rows, most };
  }
  if (prefix.value.trim() !== "") return { signature: "complete", rows: [{ text, prefix: prefix.value }], most };
  return { signature: "serving_default", rows: [{ text }], most };
}

/** Asks the newest question; while one is answered, only the last of those that come is kept. */
async function translate() {
  question = readQuestion();
  showEditor(false);
  element("correct").hidden = true;
  if (typeof question === "string") {
    show([], question, question !== "");
  } else {
    target.setAttribute("aria-busy", "true");
    paragraph.classList.add("pending");
    note.classList.remove("warning");
    tell(note, "Translating …");
  }
  if (isAsking) return;
  isAsking = true;
  let asked = null;
  while (asked !== question) {
    asked = question;
    if (typeof asked !== "string") await showAnswer(asked);
  }
  isAsking = false;
}

/** Shows what the server answers, unless a newer question has come. */
async function showAnswer(asked) {
  const begin = performance.now();
  const { predictions = [], error } = await ask(asked.signature, asked.rows);
  if (asked !== question) return;
  const seconds = (performance.now() - begin) / 1000;
  const translations = predictions.flatMap(translationsOf).slice(0, asked.most);
  const told = error === undefined ? [`Translated in ${Math.round(1000 * seconds)} ms.`] : [error];
  if (predictions.some(({ truncated }) => truncated)) {
    told.unshift("The text, or what it must begin with, was too long and is cut.");
  }
  const lost = predictions.flatMap(({ lost = [] }) => lost.filter((span) => span));
  if (lost.length > 0) told.unshift(`The translation lacks ${lost.join(" and ")}.`);
  const doubts = predictions.flatMap((row) => (row.doubts ? row.doubts.split(" ") : []));
  if (doubts.length > 0) told.unshift(`The translation is doubtful: ${said(doubts)}.`);
  if (error === undefined && translations.length === 0) told.unshift("No translation was found.");
  show(translations, told.join(" "), error !== undefined || told.length > 1);
  if (translations.length === 0) return;
  if (asked.signature === "serving_default") {
    // Others, and what words look at, are those of a single sentence.
    if (predictions[0].sources[0] !== asked.rows[0].text.trim()) return;
    const { predictions: others = [] } = await ask("nbest", asked.rows);
    if (asked !== question) return;
    show(others.flatMap(translationsOf).slice(0, asked.most), told.join(" "), told.length > 1);
  }
  if (!model.signatures.includes("align")) return;
  const looked = await ask("align", [{ text: asked.rows[0].text }]);
  if (asked !== question) return;
  [aligned] = looked.predictions ?? [null];
  map.show(aligned);
  choose(chosen);
}

/** Returns an answer's translations; what was not found is "" with float32's lowest score. */
function translationsOf({ translation, score, translations, scores }) {
  const found = translations?.map((text, place) => ({ text, score: scores[place] }));
  const all = translation === undefined ? found : [{ text: translation, score }];
  return all.filter(({ text, score }) => score > -1e38 || text.trim() !== "");
}

function show(translations, text, isWarning) {
  found = translations;
  aligned = null;
  target.setAttribute("aria-busy", "false");
  tell(note, text);
  note.classList.toggle("warning", isWarning);
  element("copy").hidden = !navigator.clipboard || found.length === 0;
  element("correct").hidden = !model?.corrects || found.length === 0;
  element("others").hidden = found.length < 2;
  choose(0);
}

/** Shows one of the translations that were found. */
function choose(place) {
  chosen = place;
  tell(paragraph, found[chosen]?.text ?? "");
  paragraph.classList.remove("pending");
  element("attention").hidden = !aligned || aligned.translation !== found[chosen]?.text;
  const items = found.map((translation, place) => {
    const [item, button] = ["li", "button"].map((name) => document.createElement(name));
    button.type = "button";
    button.setAttribute("aria-pressed", String(place === chosen));
    button.append(...scored(translation, target.lang));
    item.append(button);
    return item;
  });
  const list = element("others-list");
  replaceIfChanged(list, items);
  [...list.children].forEach(({ firstChild: button }, place) => {
    button.onclick = () => {
      choose(place);
      list.children[place].firstChild.focus();
    };
  });
}

function showEditor(isOpen) {
  element("editor").hidden = !isOpen;
  element("shown").hidden = isOpen;
}

function closeEditor() {
  showEditor(false);
  element("correct").focus();
}

/** Keeps the lines that were edited, each as the translation of that line of the text. */
async function keep() {
  const asked = question;
  const sides = [asked.rows[0].text, paragraph.textContent, correction.value];
  const [texts, before, after] = sides.map((side) => side.trimEnd().split("\n"));
  const pairs = texts.map((text, place) => [text, after[place]]).filter((_, place) => after[place] !== before[place]);
  let error;
  if (after.length !== texts.length) {
    error = `The correction must have as many lines as the text, ${texts.length}, because each line is kept by itself.`;
  } else if (pairs.length === 0) {
    error = "The translation was not changed.";
  } else {
    ({ error } = await post("corrections", { instances: pairs }));
  }
  if (asked !== question) return;
  tell(note, error ?? "Kept.");
  note.classList.toggle("warning", error !== undefined);
  if (error !== undefined) return;
  tell(paragraph, correction.value);
  closeEditor();
}

/** Returns what a signature answers: its `predictions`, or an `error`. */
function ask(signature, rows) {
  const path = `v1/models/${encodeURIComponent(model.name)}:predict`;
  return post(path, { signature_name: signature, instances: rows });
}

function post(path, document) {
  const headers = { "Content-Type": "application/json" };
  return answerOf(path, { method: "POST", headers, body: JSON.stringify(document) });
}

/** Returns what the server answers, or `error`; that it does not is shown. */
async function answerOf(path, options) {
  try {
    const answer = await (await fetch(path, options)).json();
    element("failure").hidden = true;
    return answer;
  } catch {
    tell(element("failure-text"), "The program that serves this page has ended or cannot be reached. Start it again.");
    element("failure").hidden = false;
    return { error: "" };
  }
}
