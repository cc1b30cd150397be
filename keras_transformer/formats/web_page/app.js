/** The page: what is typed goes to worker.js, and what comes back is shown. */

import {
  copy,
  debounced,
  element,
  nameOf,
  offer,
  replaceIfChanged,
  said,
  scored,
  showLanguages,
  tell,
} from "./page.js";

const LONGEST_WAIT_FOR_CACHE = 4000; // Milliseconds; without it, no offline use.

const [source, target, note] = ["source", "target", "note"].map(element);

let worker;
let description; // Content of translator.json, once it has come.
let newest = 0; // Number of the last request; answers to older ones are dropped.
let lines = []; // The text of that request, line by line.
let results = []; // What came for each line so far.
let isDone = true;

start();
source.addEventListener("input", debounced(translate));
// The alternatives are those of the line that the cursor is in.
document.addEventListener("selectionchange", showOthers);
element("clear").addEventListener("click", () => {
  source.value = "";
  source.focus();
  translate();
});
element("copy").addEventListener("click", ({ target: button }) => {
  copy([...target.children].map((paragraph) => paragraph.textContent).join("\n"), button);
});
element("again").addEventListener("click", start);

async function start() {
  worker?.terminate();
  element("failure").hidden = true;
  element("download").hidden = false;
  element("download-bar").removeAttribute("value");
  element("download-text").textContent = "Loading …";
  await cached();
  try {
    worker = new Worker("worker.js");
  } catch (error) {
    fail(`This browser has no web workers: ${error.message}`);
    return;
  }
  worker.onmessage = ({ data }) => answers[data.kind](data);
  worker.onerror = (event) => {
    fail(event.message || "worker.js could not be loaded.");
  };
}

/** Waits until sw.js keeps what is loaded from here on, where that is possible. */
async function cached() {
  const container = navigator.serviceWorker; // None over plain http.
  if (!container) return;
  const controls = new Promise((resolve) => {
    if (container.controller) resolve();
    container.addEventListener("controllerchange", resolve, { once: true });
    setTimeout(resolve, LONGEST_WAIT_FOR_CACHE);
  });
  try {
    await container.register("sw.js");
    await controls;
  } catch (error) {
    console.warn(`Without offline use: ${error.message}`);
  }
}

const answers = {
  progress({ received, total }) {
    element("download-bar").max = total;
    element("download-bar").value = received;
    element("download-text").textContent =
      received < total
        ? `Downloading: ${megabytes(received)} of ${megabytes(total)} MB`
        : "Preparing the model …";
  },

  ready({ description: read, isKept, milliseconds }) {
    description = read;
    element("download").hidden = true;
    const isOffline = isKept && Boolean(navigator.serviceWorker?.controller);
    showAbout(isOffline);
    offer(description.examples, description.languages?.[0] ?? "", (text) => {
      source.value = text;
      translate();
    });
    document.body.dataset.ready = Math.round(milliseconds);
    document.body.dataset.offline = isOffline;
    translate();
  },

  line({ id, place, ...result }) {
    if (id !== newest) return;
    results[place] = result;
    show();
  },

  done({ id }) {
    if (id !== newest) return;
    isDone = true;
    show();
  },

  error({ message }) {
    fail(message);
  },
};

function translate() {
  if (!description) return; // `ready` will translate what has been typed until then.
  newest += 1;
  lines = source.value.split("\n");
  // What stood there stays until its successor comes, so that nothing flickers.
  results = lines.map((_, place) => results[place] && { ...results[place], isOld: true });
  isDone = false;
  worker.postMessage({ id: newest, lines });
  show();
}

function show() {
  const paragraphs = lines.map((_, place) => {
    const paragraph = document.createElement("p");
    paragraph.dir = "auto";
    const result = results[place];
    paragraph.textContent = result?.translations[0]?.text ?? "";
    paragraph.classList.toggle("pending", !isNew(result));
    return paragraph;
  });
  replaceIfChanged(target, paragraphs);
  target.setAttribute("aria-busy", String(!isDone));
  element("copy").hidden = !navigator.clipboard || source.value.trim() === "";
  showNote();
  showOthers();
}

function showNote() {
  const none = results.flatMap((result, place) =>
    isNew(result) && result.translations.length === 0 ? [place + 1] : [],
  );
  const lost = results.flatMap((result) =>
    isNew(result) ? (result.translations[0]?.lost ?? []) : [],
  );
  const where = (places) => (lines.length > 1 ? `Line ${places.join(", ")}` : "The text");
  const parts = [];
  let isDoubtful = false;
  for (const [place, result] of results.entries()) {
    const doubts = (isNew(result) && result.translations[0]?.doubts) || [];
    if (doubts.length === 0) continue;
    isDoubtful = true;
    parts.push(`${where([place + 1])} has a doubtful translation: ${said(doubts)}.`);
  }
  if (none.length > 0) parts.push(`${where(none)}: no translation was found.`);
  if (lost.length > 0) parts.push(`The translation lacks ${lost.join(" and ")}.`);
  if (!isDone) parts.push("Translating …");
  else if (source.value.trim() !== "") parts.push(`Translated in ${Math.round(duration())} ms.`);
  tell(note, parts.join(" "));
  note.classList.toggle("warning", isDoubtful || none.length + lost.length > 0);
}

function isNew(result) {
  return result !== undefined && !result.isOld;
}

function duration() {
  return results.reduce((sum, result) => sum + (result?.milliseconds ?? 0), 0);
}

function showOthers() {
  const place = source.value.slice(0, source.selectionStart).split("\n").length - 1;
  [...target.children].forEach((paragraph, i) => {
    paragraph.classList.toggle("current", lines.length > 1 && i === place);
  });
  const found = results[place]?.translations ?? [];
  element("others").hidden = found.length < 2;
  const items = found.map((translation) => {
    const item = document.createElement("li");
    item.append(...scored(translation, target.lang));
    return item;
  });
  element("others-list").replaceChildren(...items);
}

function showAbout(isOffline) {
  const { languages, sizes, search } = description;
  if (languages) {
    const [title, sourceName] = ["title", "source-name"].map(element);
    showLanguages(languages, { title, sourceName, source });
    element("target-name").textContent = nameOf(languages[1]);
    target.lang = languages[1];
  }
  const width = search.beam_size > 1 ? ` and compares ${search.beam_size} translations as it goes` : "";
  element("about").textContent =
    `The model has ${megabytes(sizes["model.tflite"])} MB${width}. ` +
    (isOffline
      ? "It is stored in this browser: the page works offline."
      : "It could not be stored here, so the page needs its server at every visit.");
}

function megabytes(bytes) {
  return (bytes / 1e6).toFixed(1);
}

function fail(message) {
  worker?.terminate();
  description = undefined;
  isDone = true;
  note.textContent = "";
  element("download").hidden = true;
  element("failure-text").textContent = message;
  element("failure").hidden = false;
}
