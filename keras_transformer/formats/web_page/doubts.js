/** What is doubtful about a translation, as `keras_transformer/text/doubts.py` says it. */

const LONGEST_LOOP = 16; // words
const WIDE = /([\u3040-\u30ff\u3400-\u9fff])/g;

const NO_TEXT = /^(<.+>|>>.+<<)$/; // Special pieces, bytes, names of languages.
const LETTER = /\p{L}/u;

/** Returns "copy", "empty" and the others, as far as a translation deserves them. */
export function doubtsOf(source, translation, isUnlikely = false, isUnreadable = false) {
  const [ofSource, words] = [wordsOf(source), wordsOf(translation)];
  const found = {
    copy: ofSource.length > 2 && source.toLowerCase() === translation.toLowerCase(),
    empty: ofSource.length > 0 && words.length === 0,
    loop: loops(words) && !loops(ofSource),
    score: isUnlikely,
    script: isUnreadable,
  };
  return Object.keys(found).filter((doubt) => found[doubt]);
}

/** Returns the share of wrong translations at a score; 0 where nobody knows. */
export function doubtAt(score, steps) {
  if (!steps) return 0;
  return steps[steps.slice(1).filter(([lowest]) => score >= lowest).length][1];
}

/** Returns whether a text has letters, and none of its pieces has one. */
export function isForeign(text, pieces) {
  const hasLetters = (one) => LETTER.test(one.replace(NO_TEXT, ""));
  return hasLetters(text) && !pieces.some(hasLetters);
}

/** Returns the first place of the translations with the least faults, or 0. */
export function bestPlace(translations) {
  const isBad = (doubt) => doubt === "empty" || doubt === "loop";
  const faults = translations.map(({ doubts, lost }) => {
    return 2 * doubts.some(isBad) + (lost.length > 0);
  });
  return Math.max(faults.indexOf(Math.min(...faults)), 0);
}

function wordsOf(text) {
  return text.replace(WIDE, " $1 ").match(/[^ \t\n\v\f\r]+/g) ?? [];
}

function loops(words) {
  for (let size = 1; size <= LONGEST_LOOP; size++) {
    let equal = 0;
    for (let i = size; i < words.length; i++) {
      equal = words[i] === words[i - size] ? equal + 1 : 0;
      if (equal === 2 * size) return true;
    }
  }
  return false;
}
