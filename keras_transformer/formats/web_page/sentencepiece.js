/**
 * SentencePiece in plain JavaScript: text to ids and back, as the C++ library does it.
 *
 * Reads the `.model` files that SentencePiece writes, of the kinds "unigram" and "bpe",
 * with or without byte fallback, with any normalisation rule; those with user-defined
 * symbols, but for the pieces of spans, or a rule for the output are refused. No
 * dependencies.
 *
 *     const processor = new SentencePiece(bytes);
 *     processor.decode(processor.encode("Two young men."));
 *
 * Method: Kudo and Richardson, 2018, https://arxiv.org/abs/1808.06226.
 */

const SPACE = "\u2581"; // Written in place of a space within pieces.
const SPACE_BYTES = [0xe2, 0x96, 0x81];
const REPLACEMENT_BYTES = [0xef, 0xbf, 0xbd]; // U+FFFD

// As the enumerations in sentencepiece_model.proto have them.
const Kind = { NORMAL: 1, UNKNOWN: 2, CONTROL: 3, USER_DEFINED: 4, BYTE: 6 };
// No normalisation and no other piece has these characters.
const SPAN = /^[\ufde0-\ufde7]$/;
const [UNIGRAM, BPE] = [1, 2];

// What an unknown character scores below the least likely piece of a unigram model.
const UNKNOWN_PENALTY = 10;

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true }); // Keeps U+FEFF.

export class SentencePiece {
  #pieces;
  #options;
  #ids = new Map(); // Of the pieces that text can be cut into.
  #byteIds = new Array(256);
  #unknownId;
  #normalizer;
  #algorithm;

  /**
   * @param {Uint8Array | ArrayBuffer} model Content of a `.model` file.
   * @throws {Error} If `model` is no SentencePiece model, or one of an unknown kind.
   */
  constructor(model) {
    const { pieces, options } = readModel(new Uint8Array(model));
    this.#pieces = pieces;
    this.#options = options;
    pieces.forEach(({ text, kind }, id) => {
      const isSpan = kind === Kind.USER_DEFINED && SPAN.test(text);
      if (kind === Kind.NORMAL || isSpan) this.#ids.set(text, id);
      else if (kind === Kind.UNKNOWN) this.#unknownId = id;
      else if (kind === Kind.BYTE) this.#byteIds[byteOf(text)] = id;
      else if (kind !== Kind.CONTROL) throw unsupported(`the piece "${text}" of type ${kind}`);
    });
    if (this.#unknownId === undefined) {
      throw new Error("This is not a SentencePiece model: it has no unknown piece.");
    }
    this.#normalizer = new Normalizer(options);
    const algorithm = { [UNIGRAM]: Unigram, [BPE]: BytePairs }[options.algorithm];
    if (algorithm === undefined) throw unsupported(`model_type ${options.algorithm}`);
    this.#algorithm = new algorithm(pieces, this.#ids);
  }

  /** Number of ids. */
  get size() {
    return this.#pieces.length;
  }

  /**
   * Cuts a text into pieces, without start and end.
   *
   * @param {string} text
   * @returns {number[]} Ids.
   */
  encode(text) {
    const ids = [];
    let afterUnknown = false;
    for (const piece of this.#algorithm.cut(this.#normalizer.normalize(text))) {
      const id = this.#ids.get(piece) ?? this.#unknownId;
      const unknown = id === this.#unknownId;
      if (unknown && this.#options.byteFallback) {
        for (const byte of encoder.encode(piece)) ids.push(this.#byteIds[byte]);
      } else if (!(unknown && afterUnknown)) {
        ids.push(id); // A run of unknown characters is one unknown piece.
      }
      afterUnknown = unknown;
    }
    return ids;
  }

  /**
   * Joins pieces to a text. Control pieces (padding, start, end) are nothing.
   *
   * @param {Iterable<number>} ids
   * @returns {string}
   */
  decode(ids) {
    let text = "";
    let bytes = [];
    let atStart = true;
    let startSeen = false;
    const flush = () => {
      text += decodeBytes(bytes);
      bytes = [];
    };
    for (const id of ids) {
      const piece = this.#piece(id);
      if (piece.kind === Kind.BYTE) {
        bytes.push(byteOf(piece.text));
        continue;
      }
      flush();
      if (startSeen || text !== "") atStart = false;
      startSeen = false;
      if (piece.kind === Kind.CONTROL) continue;
      if (piece.kind === Kind.UNKNOWN) {
        text += this.#options.unknownSurface;
        continue;
      }
      let surface = piece.text;
      const { addDummyPrefix, removeExtraSpaces } = this.#options;
      if (atStart && (addDummyPrefix || removeExtraSpaces) && surface.startsWith(SPACE)) {
        surface = surface.slice(SPACE.length);
        startSeen = !removeExtraSpaces;
      }
      text += surface.replaceAll(SPACE, " ");
    }
    flush();
    return text;
  }

  /** Returns the text of a piece. */
  pieceOf(id) {
    return this.#piece(id).text;
  }

  #piece(id) {
    const piece = this.#pieces[id];
    if (piece === undefined) {
      throw new RangeError(`\`id\` must be below ${this.size}. Received: ${id}`);
    }
    return piece;
  }
}

/** Rewrites text before it is cut: characters by the model's table, then spaces. */
class Normalizer {
  #options;
  #table;

  constructor(options) {
    this.#options = options;
    this.#table = options.characters.length > 0 ? new CharacterTable(options.characters) : null;
  }

  /** Returns the normalised text, with `SPACE` for each space. */
  normalize(text) {
    const { addDummyPrefix, removeExtraSpaces, escapeSpaces, spaceAsSuffix } = this.#options;
    const space = escapeSpaces ? SPACE : " ";
    let result = "";
    let afterSpace = removeExtraSpaces; // So that the spaces at the start go.
    let blank = true;
    // A chunk is one character as a rule, but some are rewritten as several, or none.
    for (let chunk of this.#chunks(text)) {
      if (chunk !== " " || !removeExtraSpaces) blank = false;
      if (afterSpace) chunk = chunk.replace(/^ +/, "");
      if (chunk !== "") {
        afterSpace = removeExtraSpaces && chunk.endsWith(" ");
        result += escapeSpaces ? chunk.replaceAll(" ", SPACE) : chunk;
      }
    }
    if (blank) return "";
    if (addDummyPrefix && !spaceAsSuffix) result = space + result;
    if (removeExtraSpaces) while (result.endsWith(space)) result = result.slice(0, -space.length);
    if (addDummyPrefix && spaceAsSuffix) result += space;
    return result;
  }

  *#chunks(text) {
    const bytes = encoder.encode(text); // A lone surrogate becomes U+FFFD.
    for (let start = 0; start < bytes.length; ) {
      const match = this.#table?.longestMatch(bytes, start);
      const end = start + (match?.length ?? characterLength(bytes[start]));
      yield match?.text ?? decoder.decode(bytes.subarray(start, end));
      start = end;
    }
  }
}

/**
 * The table of a normalisation rule: byte sequences and what each is rewritten as.
 *
 * The file has the size of a trie in bytes, the trie as a double array in the layout of
 * Darts-clone, and the rewritten texts, each closed by a zero byte.
 */
class CharacterTable {
  #units;
  #texts;

  constructor(blob) {
    const view = new DataView(blob.buffer, blob.byteOffset, blob.byteLength);
    const size = view.getUint32(0, true);
    this.#units = new Uint32Array(size / 4);
    for (let i = 0; i < this.#units.length; i++) {
      this.#units[i] = view.getUint32(4 + 4 * i, true);
    }
    this.#texts = blob.subarray(4 + size);
  }

  /** Returns the length of the longest key at `start` of `bytes` and its text, if any. */
  longestMatch(bytes, start) {
    const units = this.#units;
    let place = unitOffset(units[0]);
    let length = 0;
    let value = 0;
    for (let i = start; i < bytes.length; i++) {
      place ^= bytes[i];
      const unit = units[place];
      if ((unit & 0x800000ff) !== bytes[i]) break; // The label of this edge.
      place ^= unitOffset(unit);
      if ((unit >>> 8) & 1) {
        length = i - start + 1;
        value = units[place] & 0x7fffffff;
      }
    }
    if (length === 0) return undefined;
    const text = this.#texts.subarray(value, this.#texts.indexOf(0, value));
    return { length, text: decoder.decode(text) };
  }
}

function unitOffset(unit) {
  return (unit >>> 10) << ((unit & 0x200) >>> 6);
}

/** The most probable segmentation, by the algorithm of Viterbi. */
class Unigram {
  #pieces;
  #ids;
  #longest = 0; // In UTF-16 units.
  #unknownScore;

  constructor(pieces, ids) {
    this.#pieces = pieces;
    this.#ids = ids;
    let [lowest, highest] = [Infinity, -Infinity];
    for (const { kind, score } of pieces) {
      if (kind !== Kind.NORMAL) continue;
      lowest = Math.min(lowest, score);
      highest = Math.max(highest, score);
    }
    for (const [text, id] of ids) {
      this.#longest = Math.max(this.#longest, text.length);
      const { kind } = pieces[id];
      if (kind === Kind.USER_DEFINED) {
        const { length } = encoder.encode(text);
        pieces[id].score = Math.fround(length * highest) - 0.1;
      }
    }
    this.#unknownScore = Math.fround(lowest - UNKNOWN_PENALTY);
  }

  /** Returns the pieces of `text`; unknown characters are pieces of their own. */
  cut(text) {
    // Score of the best way to each place, and where its last piece starts. The library
    // adds up 32-bit floats; rounded otherwise, near ties would be cut otherwise.
    const best = new Float32Array(text.length + 1);
    const from = new Int32Array(text.length + 1).fill(-1);
    const offer = (start, end, pieceScore) => {
      const score = Math.fround(best[start] + pieceScore);
      if (from[end] === -1 || score > best[end]) {
        best[end] = score;
        from[end] = start;
      }
    };
    let next;
    for (let start = 0; start < text.length; start = next) {
      next = start + (text.codePointAt(start) > 0xffff ? 2 : 1);
      let known = false;
      const last = Math.min(text.length, start + this.#longest);
      for (let end = next; end <= last; end++) {
        const id = this.#ids.get(text.slice(start, end));
        if (id === undefined) continue;
        offer(start, end, this.#pieces[id].score);
        if (end === next) known = true;
      }
      if (!known) offer(start, next, this.#unknownScore);
    }
    const result = [];
    for (let end = text.length; end > 0; end = from[end]) result.push(text.slice(from[end], end));
    return result.reverse();
  }
}

/** Characters, merged pair by pair in the order of the scores. */
class BytePairs {
  #pieces;
  #ids;

  constructor(pieces, ids) {
    this.#pieces = pieces;
    this.#ids = ids;
  }

  /** Returns the pieces of `text`; unknown characters are pieces of their own. */
  cut(text) {
    const parts = Array.from(text, (character, i) => {
      return { text: character, previous: i - 1, next: i + 1 };
    });
    const queue = new PairQueue();
    const offer = (left, right) => {
      if (left < 0 || right >= parts.length) return;
      const merged = parts[left].text + parts[right].text;
      const id = this.#ids.get(merged);
      if (id === undefined) return;
      queue.push({ left, right, length: merged.length, score: this.#pieces[id].score });
    };
    for (let i = 1; i < parts.length; i++) offer(i - 1, i);
    for (let pair = queue.pop(); pair !== undefined; pair = queue.pop()) {
      const [left, right] = [parts[pair.left], parts[pair.right]];
      // One of the two may have been merged with its other neighbour in the meantime.
      if (left.text === "" || right.text === "") continue;
      if (left.text.length + right.text.length !== pair.length) continue;
      left.text += right.text;
      right.text = "";
      left.next = right.next;
      if (right.next < parts.length) parts[right.next].previous = pair.left;
      offer(left.previous, pair.left);
      offer(pair.left, left.next);
    }
    return parts.map((part) => part.text).filter((piece) => piece !== "");
  }
}

/** Pairs to merge, a binary heap: the highest score first, then the leftmost. */
class PairQueue {
  #heap = [];

  push(pair) {
    const heap = this.#heap;
    let i = heap.length;
    while (i > 0) {
      const parent = (i - 1) >> 1;
      if (!precedes(pair, heap[parent])) break;
      heap[i] = heap[parent];
      i = parent;
    }
    heap[i] = pair;
  }

  pop() {
    const heap = this.#heap;
    const top = heap[0];
    const last = heap.pop();
    if (heap.length === 0) return top;
    let i = 0;
    for (;;) {
      let child = 2 * i + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && precedes(heap[child + 1], heap[child])) child++;
      if (!precedes(heap[child], last)) break;
      heap[i] = heap[child];
      i = child;
    }
    heap[i] = last;
    return top;
  }
}

function precedes(a, b) {
  return a.score !== b.score ? a.score > b.score : a.left < b.left;
}

// UTF-8 ---------------------------------------------------------------------------------

function characterLength(first) {
  return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

/** Decodes bytes; each one that is not part of a character is one U+FFFD. */
function decodeBytes(bytes) {
  const valid = [];
  for (let i = 0; i < bytes.length; ) {
    const length = validLength(bytes, i);
    if (length > 0) for (const byte of bytes.slice(i, i + length)) valid.push(byte);
    else valid.push(...REPLACEMENT_BYTES);
    i += length || 1;
  }
  return decoder.decode(Uint8Array.from(valid));
}

/** Returns the bytes of the character at `start`, 0 if there is no valid one. */
function validLength(bytes, start) {
  const first = bytes[start];
  if (first < 0x80) return 1;
  if (first < 0xc0 || first > 0xf7) return 0;
  const length = characterLength(first);
  let point = first & (0xff >> (length + 1));
  for (let i = start + 1; i < start + length; i++) {
    if (i >= bytes.length || (bytes[i] & 0xc0) !== 0x80) return 0;
    point = (point << 6) | (bytes[i] & 0x3f);
  }
  const least = [0, 0, 0x80, 0x800, 0x10000][length];
  const surrogate = point >= 0xd800 && point < 0xe000;
  return point >= least && point <= 0x10ffff && !surrogate ? length : 0;
}

// The file: a protocol buffer -----------------------------------------------------------

/** Returns the pieces and the options of a serialised sentencepiece.ModelProto. */
function readModel(bytes) {
  const pieces = [];
  const options = {
    algorithm: UNIGRAM,
    byteFallback: false,
    spaceAsSuffix: false,
    unknownSurface: " \u2047 ",
    characters: new Uint8Array(0),
    addDummyPrefix: true,
    removeExtraSpaces: true,
    escapeSpaces: true,
  };
  for (const [field, value] of fields(bytes)) {
    if (field === 1) pieces.push(readPiece(value));
    else if (field === 2) readTrainerSpec(value, options);
    else if (field === 3) readNormalizerSpec(value, options);
    else if (field === 5) refuseDenormalizer(value);
  }
  return { pieces, options };
}

function readPiece(bytes) {
  const piece = { text: "", score: 0, kind: Kind.NORMAL };
  for (const [field, value] of fields(bytes)) {
    if (field === 1) piece.text = decoder.decode(value);
    else if (field === 2) piece.score = asFloat(value);
    else if (field === 3) piece.kind = value;
  }
  return piece;
}

function readTrainerSpec(bytes, options) {
  for (const [field, value] of fields(bytes)) {
    if (field === 3) options.algorithm = value;
    else if (field === 24) options.spaceAsSuffix = Boolean(value);
    else if (field === 35) options.byteFallback = Boolean(value);
    else if (field === 44) options.unknownSurface = decoder.decode(value);
  }
}

function readNormalizerSpec(bytes, options) {
  for (const [field, value] of fields(bytes)) {
    if (field === 2) options.characters = value;
    else if (field === 3) options.addDummyPrefix = Boolean(value);
    else if (field === 4) options.removeExtraSpaces = Boolean(value);
    else if (field === 5) options.escapeSpaces = Boolean(value);
  }
}

function refuseDenormalizer(bytes) {
  for (const [field, value] of fields(bytes)) {
    if (field === 2 && value.length > 0) throw unsupported("a rule for the output");
  }
}

/** Returns the byte that a piece such as "<0x0A>" stands for. */
function byteOf(text) {
  return parseInt(text.slice(3, 5), 16);
}

function asFloat(bytes) {
  return new DataView(bytes.buffer, bytes.byteOffset, 4).getFloat32(0, true);
}

/** Yields [number, value] of each field: a number, or the bytes of all other types. */
function* fields(bytes) {
  let place = 0;
  const varint = () => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      if (place >= bytes.length) throw damaged();
      const byte = bytes[place++];
      value += (byte & 0x7f) * scale;
      if (byte < 0x80) return value;
    }
  };
  while (place < bytes.length) {
    const key = varint();
    const type = key % 8;
    if (type === 0) {
      yield [Math.floor(key / 8), varint()];
      continue;
    }
    const length = { 1: () => 8, 2: varint, 5: () => 4 }[type]?.();
    if (length === undefined || place + length > bytes.length) throw damaged();
    yield [Math.floor(key / 8), bytes.subarray(place, place + length)];
    place += length;
  }
}

function unsupported(what) {
  return new Error(`The SentencePiece model has ${what}, which is not supported here.`);
}

function damaged() {
  return new Error("This is not a SentencePiece model, or it is cut short.");
}
