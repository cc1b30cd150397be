/** What the page of a site and that of `serve` do alike. */

const WAIT = 120; // Milliseconds without a key before a translation begins.

/** Returns the element with an id. */
export const element = (id) => document.getElementById(id);

/** Returns a function that runs an action once nobody has called it for a moment. */
export function debounced(action, wait = WAIT) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, wait);
  };
}

/** Puts children into an element if they differ: a screen reader tells every change. */
export function replaceIfChanged(parent, children) {
  const old = [...parent.children];
  const isSame = (child, place) => child.isEqualNode(children[place]);
  if (old.length !== children.length || !old.every(isSame)) parent.replaceChildren(...children);
}

/** Sets the text of an element, if it is another. */
export function tell(where, text) {
  if (where.textContent !== text) where.textContent = text;
}

/** Returns a translation and its score as nodes. */
export function scored({ text, score }, language) {
  const words = document.createElement("span");
  words.dir = "auto";
  words.textContent = text;
  words.lang = language;
  const number = document.createElement("small");
  number.textContent = score?.toFixed(2) ?? "";
  number.title = "Log-probability over the length penalty: nearer to 0 is likelier";
  return [words, " ", number];
}

const DOUBTS = {
  copy: "a sentence may not be translated",
  empty: "a sentence has no translation",
  loop: "it repeats itself",
  score: "most translations with such a score were wrong",
  script: "the model has learned none of the letters of a sentence",
};

/** Returns the doubts of a translation in words. */
export function said(doubts) {
  return doubts.map((doubt) => DOUBTS[doubt]).join(", ");
}

/** Offers sentences to be translated by a click; hidden where there are none. */
export function offer(sentences, language, choose) {
  const buttons = sentences.map((text) => {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", dir: "auto", lang: language, textContent: text });
    button.addEventListener("click", () => choose(text));
    return button;
  });
  element("examples").replaceChildren("Try:", ...buttons);
  element("examples").hidden = buttons.length === 0;
}

/** Names the languages of source and target, as codes, in the title and the labels. */
export function showLanguages([from, to], { title, sourceName, source }) {
  document.title = `${nameOf(from)} to ${nameOf(to)}`;
  title.textContent = `${nameOf(from)} → ${nameOf(to)}`;
  sourceName.textContent = nameOf(from);
  source.lang = from;
}

/** Returns the English name of a language code, or the code where there is none. */
export function nameOf(code) {
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(code);
  } catch {
    return code;
  }
}

/** Copies a text; the button says for a moment whether that was allowed. */
export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = "Copy"), 1500);
}
