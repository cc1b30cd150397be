/**
 * Texts cut into sentences, as `keras_transformer/text/sentences.py` cuts them, by the
 * rules in translator.json.
 */

export const CUT = "\ufdd0";
const [KEPT, END] = ["\ufdd1", "\ufdd2"];
// Where spans.js has taken a span out, and a space that only the model sees.
export const [PLACE, GLUE] = ["\ufde0", "\ufdd6"];

export class SentenceSplitter {
  #rules;

  /** @param {object} rules What Python's `sentence_rules` returns. */
  constructor(rules) {
    this.#rules = rules;
  }

  /**
   * Returns the first sentence, what follows it, the second sentence, and so on.
   *
   * @param {string} text Without such marks, as `SpanFinder.hidden` returns it.
   * @param {(sentence: string) => boolean} isTooLong Such a sentence is cut in halves.
   * @returns {string[]} Together they are the text.
   */
  split(text, isTooLong = () => false) {
    let marked = text + END;
    for (const rule of this.#rules.sentences) marked = replaced(marked, rule);
    const cut = (sentence) => {
      // Not `length`: a character such as an emoji has two units.
      if (Array.from(sentence).length < 2 || !isTooLong(sentence)) return [sentence];
      const [first, between, second] = this.halves(sentence);
      return [...cut(first), between, ...cut(second)];
    };
    return marked.split(CUT).flatMap((part, i) => (i % 2 ? [part] : cut(part)));
  }

  /** Returns the first half of a sentence, what follows it, and the second half. */
  halves(sentence) {
    const characters = Array.from(sentence);
    const size = characters.length;
    const clause = new RegExp(`^(?:${this.#rules.clause})$`, "u");
    let [best, most] = [1, -Infinity];
    for (let place = 1; place < size; place++) {
      const isMiddle = size <= 4 * place && 4 * place <= 3 * size;
      const isClause = clause.test(characters[place - 1] + characters[place]);
      const rank = isMiddle && isClause ? 2 : Number(characters[place] === " ");
      const value = 2 * size * rank - Math.abs(2 * place - size);
      if (value > most) [best, most] = [place, value];
    }
    const [first, second] = [characters.slice(0, best), characters.slice(best)];
    const marked = [...first, KEPT, ...second].join("");
    return replaced(marked, this.#rules.halves).split(CUT);
  }
}

/** Applies a rule that is written for Python. */
export function replaced(text, [pattern, replacement]) {
  const expression = new RegExp(pattern, "gu");
  return text.replace(expression, replacement.replace(/\\(\d)/g, "$$$1"));
}
