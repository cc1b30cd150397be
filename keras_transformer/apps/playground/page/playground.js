/** The playground: what is typed goes to the server's run, and what comes is shown. */

import { AttentionMap } from "./attention.js";
import { copy, debounced, element, nameOf, offer, replaceIfChanged, scored, showLanguages, tell } from "./page.js";

const [source, target, note, way, count, beam, prefix, temperature, layer, head] = [
  "source", "target", "note", "way", "count", "beam", "prefix", "temperature", "layer", "head",
].map(element);
const paragraph = target.firstElementChild;
const map = new AttentionMap(element("map"));
const aborts = { translate: null, attend: null };

let longest = Infinity; // Characters.
let seed = 0;
let asked = null; // The question of the translations that are shown.
let found = []; // Translations.
let chosen = 0;

const soon = debounced(translate);
for (const field of [source, count, beam, prefix, temperature]) field.addEventListener("input", soon);
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
element("copy").addEventListener("click", ({ target: button }) => copy(found[chosen].text, button));
element("by").addEventListener("change", ({ target: { value } }) => map.showBy(value));
for (const field of [layer, head]) field.addEventListener("change", attend);
element("again").addEventListener("click", start);
showControls();
start();

async function start() {
  const run = await answerOf("api/run");
  if (run.error !== undefined) return;
  longest = run.max_text_length;
  beam.value = run.beam_size;
  element("name").textContent = run.name;
  if (run.languages) {
    const [title, sourceName] = ["title", "source-name"].map(element);
    showLanguages(run.languages, { title, sourceName, source });
    const [from, to] = run.languages;
    element("target-name").textContent = nameOf(to);
    target.lang = prefix.lang = to;
    map.languages = { source: from, target: to };
  }
  offer(run.examples, source.lang, (text) => {
    source.value = text;
    translate();
  });
  // Counted from 0, as everywhere in the package.
  const numbers = (length) => Array.from({ length }, (_, place) => new Option(place, place));
  layer.replaceChildren(...numbers(run.layers));
  layer.value = run.layer;
  layer.options[0].text += " (first)";
  layer.options[run.layers - 1].text = `${run.layers - 1} (last)`;
  head.replaceChildren(new Option("mean of all", ""), ...numbers(run.heads));
  document.body.dataset.ready = "true";
  translate();
}

/** Shows the controls of a search, or those of drawing. */
function showControls() {
  for (const one of document.querySelectorAll(".search")) one.hidden = way.value !== "search";
  for (const one of document.querySelectorAll(".draw")) one.hidden = way.value !== "draw";
  element("degrees").textContent = Number(temperature.value).toFixed(1);
}

/** Returns what the run is asked, or why it is not. */
function readQuestion() {
  // A line break is a space: one sentence at a time.
  const text = source.value.replace(/\s+/g, " ").trim();
  if (text === "") return "";
  for (const [what, { length }] of [["The text", text], ["The beginning", prefix.value]]) {
    const [typed, most] = [length, longest].map((number) => number.toLocaleString("en"));
    if (length > longest) return `${what} is too long: ${typed} characters; at most ${most} are taken.`;
  }
  for (const [name, field] of [["How many", count], ["Beam size", beam]]) {
    const isWrong = field.value === "" || !field.checkValidity();
    if (isWrong) return `${name} must be a whole number from ${field.min} to ${field.max}.`;
  }
  const question = { text, count: Number(count.value) };
  if (way.value === "draw") return { ...question, temperature: Number(temperature.value), seed };
  return { ...question, beam_size: Number(beam.value), prefix: prefix.value };
}

/** Asks the run; the answers to earlier questions are dropped. */
async function translate() {
  aborts.attend?.abort();
  aborts.translate?.abort();
  asked = readQuestion();
  if (typeof asked === "string") {
    show([], asked, asked !== "");
    return;
  }
  target.setAttribute("aria-busy", "true");
  paragraph.classList.add("pending");
  note.classList.remove("warning");
  tell(note, "Translating …");
  const answer = await ask("translate", asked);
  if (!answer) return;
  const { error, translations = [], truncated, milliseconds } = answer;
  const told = error === undefined ? [`Translated in ${Math.round(milliseconds)} ms.`] : [error];
  if (truncated) told.unshift("The text, or what it must begin with, was too long and is cut.");
  if (!error && translations.length === 0) told.unshift("No translation was found.");
  show(translations, told.join(" "), error !== undefined || told.length > 1);
  attend();
}

function show(translations, text, isWarning) {
  found = translations;
  target.setAttribute("aria-busy", "false");
  tell(note, text);
  note.classList.toggle("warning", isWarning);
  element("copy").hidden = !navigator.clipboard || found.length === 0;
  element("others").hidden = found.length < 2;
  element("attention").hidden = found.length === 0;
  choose(0);
}

/** Shows one of the translations that were found. */
function choose(place) {
  chosen = place;
  tell(paragraph, found[chosen]?.text ?? "");
  paragraph.classList.remove("pending");
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
      attend();
    };
  });
}

/** Asks what the chosen translation looks at. */
async function attend() {
  aborts.attend?.abort();
  if (found.length === 0) {
    map.show(null);
    return;
  }
  const question = { text: asked.text, tokens: found[chosen].tokens, layer: Number(layer.value) };
  if (head.value !== "") question.head = Number(head.value);
  element("map").classList.add("pending");
  const answer = await ask("attend", question);
  if (!answer) return;
  element("map").classList.remove("pending");
  map.show(answer.error === undefined ? answer : null, answer.error);
}

/** Returns the server's answer to a question; nothing if a newer one has replaced it. */
async function ask(verb, question) {
  const { signal } = (aborts[verb] = new AbortController());
  const answer = await answerOf(`api/${verb}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(question),
    signal,
  });
  return signal.aborted ? undefined : answer;
}

/** Returns what the server answers, or `error`; that it does not is shown. */
async function answerOf(path, options) {
  try {
    const answer = await (await fetch(path, options)).json();
    element("failure").hidden = true;
    return answer;
  } catch (error) {
    if (!options?.signal?.aborted) {
      tell(element("failure-text"), "The program that serves this page has ended or cannot be reached. Start it again.");
      element("failure").hidden = false;
    }
    return { error: "" };
  }
}
