/**
 * Text to text in the browser: SentencePiece, LiteRT.js and the exported model.
 *
 * It does what `keras_transformer.LiteTranslator` does in Python, for one text at a time;
 * translator.json says with which files, lengths and ids.
 */

import { bestPlace, doubtAt, doubtsOf, isForeign } from "./doubts.js";
import { SentencePiece } from "./sentencepiece.js";
import { CUT, GLUE, PLACE, SentenceSplitter } from "./sentences.js";
import { SpanFinder } from "./spans.js";

const DESCRIPTION = "translator.json";
const LITERT = "litert/"; // The folder of LiteRT.js.
const MOST_SPANS = 8; // Of a sentence.
// Where the search found none.
const NOTHING = { text: "", score: -Infinity, doubt: 0, doubts: ["empty"], lost: [] };

export class Translator {
  #description;
  #source;
  #target;
  #model;
  #Tensor;
  #splitter;
  #finder;

  /**
   * @param {object} description Content of translator.json.
   * @param {{source: SentencePiece, target: SentencePiece}} tokenizers
   * @param {object} model What `loadAndCompile` of LiteRT.js returned.
   * @param {Function} Tensor LiteRT.js's class.
   */
  constructor(description, tokenizers, model, Tensor) {
    this.#description = description;
    this.#source = tokenizers.source;
    this.#target = tokenizers.target;
    this.#model = model;
    this.#Tensor = Tensor;
    this.#splitter = new SentenceSplitter(description.sentence_rules);
    this.#finder = new SpanFinder(description.span_rules);
  }

  /**
   * Translates a text, sentence by sentence.
   *
   * @param {string} text
   * @returns {Promise<{text: string, score: number, doubt: number, doubts: string[],
   *   lost: string[]}[]>} The translations of a sentence, best first, but after those with the least faults;
   *   none if the search found none. Of several sentences the best, joined, with the
   *   lowest of their scores, the largest `doubt` and all their `doubts`. A text with nothing but spaces has
   *   itself, with score 0. `lost` are spans, such as URLs, that a translation lacks.
   */
  async translate(text) {
    const hidden = this.#finder.hidden(text);
    const isTooLong = (part) => {
      const seen = part.replaceAll(GLUE, " ");
      const isCut = sourceIds(this.#source, seen, this.#description).isCut;
      return isCut || countPlaces(part) > MOST_SPANS;
    };
    const cut = this.#splitter.split(hidden.text, isTooLong).join(CUT);
    const parts = this.#finder.marked({ ...hidden, text: cut }).split(CUT);
    const places = [...parts.keys()].filter((i) => i % 2 === 0 && parts[i]);
    const results = [];
    for (const i of places) {
      results.push(await this.#alternatives(this.#finder.hidden(parts[i])));
    }
    const joined = (texts) => {
      const whole = [...parts];
      for (const [k, i] of places.entries()) whole[i] = texts[k];
      return whole.join("");
    };
    if (places.length === 1) {
      return results[0].map((one) => ({ ...one, text: joined([one.text]) }));
    }
    const best = results.map(([first]) => first ?? NOTHING);
    const score = Math.min(0, ...best.map((one) => one.score));
    const doubts = [...new Set(best.flatMap((one) => one.doubts))].sort();
    const doubt = Math.max(0, ...best.map((one) => one.doubt));
    const lost = best.flatMap((one) => one.lost);
    return [{ text: joined(best.map((one) => one.text)), score, doubt, doubts, lost }];
  }

  /** Returns the translations of a sentence of a hidden text, best first. */
  async #alternatives(sentence) {
    const seen = this.#finder.seen(sentence);
    const { ids } = sourceIds(this.#source, seen, this.#description);
    if (ids.length <= 1) return [{ text: "", score: 0, doubt: 0, doubts: [], lost: [] }];
    const length = this.#description.lengths.find((length) => length >= ids.length);
    const padded = new Int32Array(length).fill(this.#description.special_ids.pad_id);
    padded.set(ids);
    const inputs = {
      source: new this.#Tensor(padded, [1, length]),
      lengths: new this.#Tensor(Int32Array.of(ids.length), [1]),
    };
    const outputs = await this.#model.run(`translate_${length}`, inputs);
    const found = await outputs.ids.data();
    const scores = await outputs.scores.data();
    // They lie in WebAssembly's memory, which no garbage collector looks after.
    for (const tensor of [...Object.values(inputs), ...Object.values(outputs)]) {
      tensor.delete();
    }
    const pieces = ids.map((id) => this.#source.pieceOf(id));
    const all = this.#translations(seen, isForeign(seen, pieces), found, scores, sentence.spans);
    return [...all.splice(bestPlace(all), 1), ...all];
  }

  #translations(seen, isUnreadable, ids, scores, spans) {
    const { doubt_steps: steps, doubt_above: limit } = this.#description.search;
    const width = ids.length / scores.length;
    const translations = [];
    scores.forEach((score, i) => {
      if (!Number.isFinite(score)) return; // A place that no hypothesis has taken.
      const row = ids.subarray(i * width, (i + 1) * width);
      const text = textOf(this.#target, row, this.#description);
      const doubt = doubtAt(score, steps);
      const doubts = doubtsOf(seen, text, doubt > limit, isUnreadable);
      const restored = this.#finder.restored(text, spans);
      if (translations.some((one) => one.text === restored.text)) return;
      translations.push({ ...restored, score, doubt, doubts });
    });
    return translations;
  }
}

/** Returns the number of spans that were taken out of a text. */
function countPlaces(hidden) {
  return hidden.split(PLACE).length - 1;
}

/** Returns the ids of a source, the end id included, and whether it was cut. */
export function sourceIds(tokenizer, text, { max_source_length, special_ids }) {
  const pieces = tokenizer.encode(text);
  const isCut = pieces.length > max_source_length - 1;
  return { ids: [...pieces.slice(0, max_source_length - 1), special_ids.end_id], isCut };
}

/** Joins pieces; padding and start vanish, and all from the first end on. */
export function textOf(tokenizer, ids, { special_ids: { pad_id, start_id, end_id } }) {
  const end = ids.indexOf(end_id);
  const kept = end < 0 ? ids : ids.slice(0, end);
  return tokenizer.decode(kept.filter((id) => id !== pad_id && id !== start_id));
}

/**
 * Loads a translator.
 *
 * @param {string} base Address of the folder, ending in "/".
 * @param {(progress: {received: number, total: number}) => void} onProgress Called with
 *   bytes while files come; those of an earlier visit are not counted.
 * @returns {Promise<{translator: Translator, description: object, isKept: boolean}>}
 *   `isKept`: whether all is stored, to be loaded without a network.
 * @throws {Error} With a message for the reader of the page.
 */
export async function load(base, onProgress) {
  if (typeof WebAssembly !== "object") {
    throw new Error("This browser has no WebAssembly, which the translation runs on.");
  }
  const description = await readDescription(base);
  const litert = await importFrom(new URL(`${LITERT}core.js`, base).href);
  // The choice that `loadLiteRt` would make.
  const isFast = await litert.supportsFeature("relaxedSimd");
  const runtime = `${LITERT}litert_wasm_${isFast ? "" : "compat_"}internal`;
  const { source, target } = description.tokenizers;
  const files = new Files(base, description, onProgress);
  const names = [...new Set(["model.tflite", source, target, `${runtime}.wasm`])];
  const contents = new Map(
    await Promise.all(names.map(async (name) => [name, await files.read(name)])),
  );
  const vocabularies = new Map(
    [...new Set([source, target])].map((name) => [name, new SentencePiece(contents.get(name))]),
  );
  // What it prints is of use to its developers alone; what goes wrong is thrown.
  const [print, printErr] = [console.debug, console.debug];
  self.Module = { wasmBinary: contents.get(`${runtime}.wasm`), print, printErr };
  await litert.loadLiteRt(new URL(`${runtime}.js`, base).href);
  const model = await litert.loadAndCompile(contents.get("model.tflite"), {
    accelerator: "wasm",
  });
  const tokenizers = { source: vocabularies.get(source), target: vocabularies.get(target) };
  const translator = new Translator(description, tokenizers, model, litert.Tensor);
  return { translator, description, isKept: files.areKept };
}

async function readDescription(base) {
  const response = await fetchChecked(new URL(DESCRIPTION, base).href);
  try {
    return await response.json();
  } catch {
    throw new Error(`${DESCRIPTION} is damaged. Export the folder again.`);
  }
}

async function importFrom(url) {
  try {
    return await import(url);
  } catch (error) {
    throw new Error(`LiteRT.js could not be loaded from ${url}: ${error.message}`);
  }
}

/** Large files: fetched with progress, checked, and kept for the next visit. */
class Files {
  #base;
  #description;
  #onProgress;
  #received = 0;
  #total = 0;
  areKept = true;

  constructor(base, description, onProgress) {
    this.#base = base;
    this.#description = description;
    this.#onProgress = onProgress;
  }

  /** Returns the content of a file, by its name in translator.json. */
  async read(name) {
    const url = new URL(name, this.#base).href;
    const cache = await this.#cache();
    const kept = await cache?.match(url);
    if (kept) return new Uint8Array(await kept.arrayBuffer());
    const content = await this.#fetch(name, url);
    await this.#check(name, content);
    await this.#keep(cache, url, content);
    return content;
  }

  /** Returns the cache that sw.js serves from; none where the browser forbids it. */
  async #cache() {
    const name = `keras-transformer ${this.#base} ${this.#description.version}`;
    try {
      return await self.caches?.open(name);
    } catch {
      return undefined; // As in a private window.
    }
  }

  async #fetch(name, url) {
    // "no-store": sw.js leaves the request to us, and the browser keeps no second copy.
    const response = await fetchChecked(url, { cache: "no-store" });
    const expected = this.#description.sizes[name];
    this.#total += expected ?? 0;
    const parts = [];
    const reader = response.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      parts.push(value);
      this.#received += value.length;
      this.#total = Math.max(this.#total, this.#received); // Where no size is known.
      this.#onProgress({ received: this.#received, total: this.#total });
    }
    return new Uint8Array(await new Blob(parts).arrayBuffer());
  }

  async #check(name, content) {
    const { sizes, files } = this.#description;
    let isRight = content.length === sizes[name];
    // Browsers have digests for https and localhost alone.
    if (isRight && self.crypto?.subtle) {
      const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", content));
      const text = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0"));
      isRight = text.join("") === files[name];
    }
    if (!isRight) {
      throw new Error(
        `${name} is damaged or of another export: ${content.length} bytes came, ` +
          `${sizes[name]} were exported. Copy the folder to the server again.`,
      );
    }
  }

  async #keep(cache, url, content) {
    try {
      await cache.put(url, new Response(content));
    } catch {
      this.areKept = false; // No cache, or no room in it: the next visit fetches again.
    }
  }
}

async function fetchChecked(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    throw new Error(`${url} cannot be reached: ${error.message}`);
  }
  if (!response.ok) {
    throw new Error(`${url} did not come: the server answered with status ${response.status}.`);
  }
  return response;
}
