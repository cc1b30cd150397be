/**
 * What passes through a translation unchanged, as `keras_transformer/text/spans.py` finds
 * it, by the rules in translator.json.
 */

import { GLUE, PLACE, replaced } from "./sentences.js";

const PIECES = Array.from("\ufde0\ufde1\ufde2\ufde3\ufde4\ufde5\ufde6\ufde7");
const [OPEN, CLOSE, GONE] = ["\ufdd3", "\ufdd5", "\ufdd7"];

export class SpanFinder {
  #rules;

  /** @param {object} rules What Python's `span_rules` returns. */
  constructor(rules) {
    this.#rules = rules;
  }

  /**
   * Returns a text without its spans, and these in order.
   *
   * @param {string} text
   * @returns {{text: string, spans: string[]}}
   */
  hidden(text) {
    const marked = this.#replaced("mark", text);
    const spans = marked.split(OPEN).slice(1);
    const inside = spans.map((part) => part.split(CLOSE)[0]);
    return { text: this.#replaced("hide", marked), spans: inside };
  }

  /** Returns a text in which `hidden` finds the same spans. */
  marked({ text, spans }) {
    const marked = spans.map((span) => OPEN + span + CLOSE);
    return filled(text, marked).replaceAll(GLUE, "");
  }

  /** Returns what the model sees: pieces, and from the ninth span on its source. */
  seen({ text, spans }) {
    const values = this.#sources(spans).map((own, i) => PIECES[i] ?? own);
    return this.#replaced("see", filled(text, values));
  }

  /**
   * Returns a translation with its spans, and the sources of those it lost.
   *
   * @param {string} text
   * @param {string[]} spans
   * @returns {{text: string, lost: string[]}}
   */
  restored(text, spans) {
    const left = new Map(spans.map((span, i) => [PIECES[i] ?? i, span]));
    const whole = text.replace(new RegExp(`[${PIECES.join("")}]`, "g"), (piece) => {
      if (!left.has(piece)) return GONE;
      const shown = this.#replaced("shown", left.get(piece));
      left.delete(piece);
      return shown;
    });
    const lost = this.#sources([...left.values()]).map((own) => own.replaceAll(GLUE, ""));
    return { text: this.#replaced("restore", whole), lost };
  }

  #sources(spans) {
    return spans.map((span) => this.#replaced("source", span));
  }

  #replaced(name, text) {
    return this.#rules[name].reduce(replaced, text);
  }
}

/** Returns a hidden text with a value in each place. */
function filled(text, values) {
  return text.split(PLACE).reduce((whole, part, i) => whole + values[i - 1] + part);
}
