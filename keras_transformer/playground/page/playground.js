/** The playground: what is typed goes to the server's models, and what comes is shown. */

import { AttentionMap } from "./attention.js";
import {
  copy,
  debounced,
  element,
  nameOf,
  replaceIfChanged,
  scored,
  showLanguages,
  tell,
} from "./page.js";

const [source, prefix, count, beam, temperature] = [
  "source",
  "prefix",
  "count",
  "beam",
  "temperature",
].map(element);

let panels = [];
let longest = Infinity; // Characters.
let seed = 0;

const soon = debounced(translate);
source.addEventListener("input", soon);
for (const field of [prefix, count, beam]) field.addEventListener("input", soon);
temperature.addEventListener("input", () => {
  showControls();
  soon();
});
element("ways").addEventListener("change", () => {
  showControls();
  translate();
});
element("redraw").addEventListener("click", () => {
  seed += Number(count.max);
  translate();
});
element("clear").addEventListener("click", () => {
  source.value = "";
  source.focus();
  translate();
});
element("again").addEventListener("click", start);
start();

async function start() {
  let offers;
  try {
    offers = await fetched("api/models");
  } catch (error) {
    fail(error);
    return;
  }
  element("failure").hidden = true;
  longest = offers.max_text_length;
  const [from, to] = offers.languages ?? ["", ""];
  if (offers.languages) {
    const [title, sourceName] = ["title", "source-name"].map(element);
    showLanguages(offers.languages, { title, sourceName, source });
    prefix.lang = to;
  }
  panels = offers.models.map((offer, place) => new Panel(offer, place, { source: from, target: to }));
  element("models").replaceChildren(...panels.map((panel) => panel.root));
  element("models").classList.toggle("two", panels.length > 1);
  const beams = offers.models.flatMap((offer) => offer.beam_size ?? []);
  if (beams.length > 0) beam.value = beams[0];
  showControls();
  document.body.dataset.ready = "true";
  translate();
}

/** Shows the controls that a model offers and that the chosen way has. */
function showControls() {
  const offered = (test) => panels.some(({ offer }) => test(offer));
  const isSearch = !isDrawn();
  element("ways").hidden = !offered((offer) => offer.sampling);
  element("count-field").hidden = !offered((offer) => offer.several || offer.sampling);
  element("beam-field").hidden = !(isSearch && offered((offer) => offer.beam_size !== null));
  element("prefix-field").hidden = !(isSearch && offered((offer) => offer.prefix));
  element("temperature-field").hidden = element("redraw").hidden = isSearch;
  element("temperature-value").textContent = Number(temperature.value).toFixed(1);
}

function isDrawn() {
  return element("ways").querySelector(":checked").value === "draw";
}

function translate() {
  for (const panel of panels) panel.translate(question(panel.offer));
}

/** Returns what a model is asked, or what to tell the reader in its place. */
function question(offer) {
  // A line break is a space: one sentence at a time.
  const text = source.value.replace(/\s+/g, " ").trim();
  if (text === "") return { told: "" };
  if (text.length > longest) {
    const [typed, most] = [text.length, longest].map((number) => number.toLocaleString("en"));
    return { told: `The text is too long: ${typed} characters; at most ${most} are taken.` };
  }
  for (const field of [count, beam]) {
    const isUsed = !field.closest("label").hidden;
    if (isUsed && (field.value === "" || !field.checkValidity())) {
      const name = field.closest("label").firstChild.textContent.trim();
      return { told: `${name} must be a whole number from ${field.min} to ${field.max}.` };
    }
  }
  const asked = { text, count: Number(count.value) };
  if (isDrawn()) {
    if (!offer.sampling) return { told: "This model draws no translations." };
    return { ...asked, temperature: Number(temperature.value), seed };
  }
  if (prefix.value.trim() !== "") {
    if (!offer.prefix) return { told: "This model takes no beginning." };
    asked.prefix = prefix.value;
  }
  if (offer.beam_size !== null) asked.beam_size = Number(beam.value);
  return asked;
}

/** One model: its translation, the others, and what they look at. */
class Panel {
  #place;
  #languages;
  #map;
  #asked; // The question of the translations that are shown.
  #found = []; // Translations.
  #chosen = 0;
  #aborts = { translate: null, attend: null };

  constructor(offer, place, languages) {
    this.offer = offer;
    this.#place = place;
    this.#languages = languages;
    this.root = element("model").content.cloneNode(true).firstElementChild;
    const name = this.#one(".name");
    name.id = `name-${place}`;
    name.textContent = offer.name;
    this.root.setAttribute("aria-labelledby", name.id);
    const target = this.#one(".target");
    target.lang = languages.target;
    target.setAttribute("aria-label", languages.target ? nameOf(languages.target) : "Translation");
    this.#one(".copy").addEventListener("click", ({ target: button }) => {
      copy(this.#found[this.#chosen].text, button);
    });
    this.#map = new AttentionMap(this.#one(".map"), languages);
    this.#one(".by").addEventListener("change", ({ target: { value } }) => this.#map.showBy(value));
    this.#offerLayers();
    this.#one(".missing").hidden = offer.missing.length === 0;
    this.#one(".missing ul").replaceChildren(...offer.missing.map((text) => made("li", text)));
  }

  #one(selector) {
    return this.root.querySelector(selector);
  }

  #offerLayers() {
    const { layers, layer, heads } = this.offer;
    const numbers = (length) => Array.from({ length }, (_, i) => new Option(i + 1, i));
    this.#one(".layer").replaceChildren(...numbers(layers));
    this.#one(".layer").value = layer;
    this.#one(".head").replaceChildren(new Option("mean of all", ""), ...numbers(heads));
    this.#one(".layer-field").hidden = layers < 2;
    this.#one(".head-field").hidden = heads < 2;
    for (const name of [".layer", ".head"]) {
      this.#one(name).addEventListener("change", () => this.#attend());
    }
  }

  /** Asks the model; the answers to earlier questions are dropped. */
  async translate(asked) {
    this.#aborts.attend?.abort();
    if ("told" in asked) {
      this.#aborts.translate?.abort();
      this.#show([], asked.told, asked.told !== "");
      return;
    }
    this.#one(".target").setAttribute("aria-busy", "true");
    this.#one(".target p").classList.add("pending");
    tell(this.#one(".note"), "Translating …");
    this.#one(".note").classList.remove("warning");
    const answer = await this.#ask("translate", asked);
    if (!answer) return;
    this.#asked = asked;
    const { error, translations = [], truncated, milliseconds } = answer;
    const told = error ? [error] : [];
    if (truncated) told.push("The text, or what it must begin with, was too long and is cut.");
    if (error === undefined && translations.length === 0) told.push("No translation was found.");
    const time = error === undefined ? [`${Math.round(milliseconds)} ms`] : [];
    this.#show(translations, [...told, ...time].join(" "), told.length > 0);
    this.#attend();
  }

  #show(found, note, isWarning) {
    this.#found = found;
    this.#chosen = 0;
    this.#one(".target").setAttribute("aria-busy", "false");
    tell(this.#one(".note"), note);
    this.#one(".note").classList.toggle("warning", isWarning);
    this.#one(".copy").hidden = !navigator.clipboard || found.length === 0;
    this.#one(".others").hidden = found.length < 2;
    this.#one(".attention").hidden = found.length === 0 || this.offer.attention === "none";
    if (found.length === 0) this.#map.show(null);
    this.#showChosen();
  }

  #showChosen() {
    const paragraph = this.#one(".target p");
    tell(paragraph, this.#found[this.#chosen]?.text ?? "");
    paragraph.classList.remove("pending");
    const items = this.#found.map((translation, place) => {
      const button = made("button", "");
      button.type = "button";
      button.setAttribute("aria-pressed", String(place === this.#chosen));
      button.append(...scored(translation, this.#languages.target));
      const item = made("li", "");
      item.append(button);
      return item;
    });
    const list = this.#one(".others-list");
    replaceIfChanged(list, items);
    [...list.children].forEach((item, place) => {
      item.firstChild.onclick = () => this.#choose(place);
    });
  }

  #choose(place) {
    this.#chosen = place;
    this.#showChosen();
    this.#one(".others-list").children[place].firstChild.focus();
    this.#attend();
  }

  /** Asks what the chosen translation looks at. */
  async #attend() {
    const chosen = this.#found[this.#chosen];
    if (!chosen || this.offer.attention === "none") return;
    const { temperature: drawnAt, prefix: begun } = this.#asked;
    const isBest = this.#chosen === 0 && drawnAt === undefined && begun === undefined;
    if (this.offer.attention === "best" && !isBest) {
      this.#aborts.attend?.abort();
      this.#unseen("A SavedModel tells what the best translation of a free search looks at, and no other.");
      return;
    }
    const asked = { text: this.#asked.text, translation: chosen.text };
    if (chosen.tokens) asked.tokens = chosen.tokens;
    if (this.offer.layers > 0) asked.layer = Number(this.#one(".layer").value);
    this.#one(".map").classList.add("pending");
    const head = this.#one(".head").value;
    if (head !== "") asked.head = Number(head);
    const answer = await this.#ask("attend", asked);
    if (answer?.error !== undefined) this.#unseen(answer.error);
    else if (answer) {
      this.#unseen("");
      this.#one(".map").classList.remove("pending");
      this.#map.show(answer);
      this.root.dataset.seen = chosen.text;
    }
  }

  #unseen(reason) {
    this.#one(".map").hidden = this.#one(".choices").hidden = reason !== "";
    this.#one(".unseen").hidden = reason === "";
    tell(this.#one(".unseen"), reason);
  }

  /** Returns the server's answer, with `error` if it refused; nothing if it is stale. */
  async #ask(verb, asked) {
    this.#aborts[verb]?.abort();
    const abort = (this.#aborts[verb] = new AbortController());
    try {
      const answer = await fetched(`api/${verb}`, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ model: this.#place, ...asked }),
        signal: abort.signal,
      });
      if (abort.signal.aborted) return undefined;
      element("failure").hidden = true;
      return answer;
    } catch (error) {
      if (abort.signal.aborted) return undefined;
      if (error instanceof Refusal) return { error: error.message };
      fail(error);
      return { error: "" };
    }
  }
}

/** What the server answers in place of what it was asked for. */
class Refusal extends Error {}

async function fetched(path, options) {
  const response = await fetch(path, options);
  const answer = await response.json();
  if (!response.ok) throw new Refusal(answer.error);
  return answer;
}

function fail(error) {
  const isRefused = error instanceof Refusal;
  element("failure-text").textContent = isRefused
    ? error.message
    : "The program that serves this page has ended or cannot be reached. Start it again.";
  element("failure").hidden = false;
}

function made(name, text) {
  const one = document.createElement(name);
  one.textContent = text;
  return one;
}
