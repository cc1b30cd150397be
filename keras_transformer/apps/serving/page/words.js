/**
 * Pieces as words that a reader knows, whatever marks the start of a word: SentencePiece writes the space
 * before it as "▁", byte-level BPE as "Ġ", and WordPiece marks what continues a word with "##".
 */

const BYTE = /^<0x([0-9A-F]{2})>$/;
// Ends, unknown pieces and languages, such as "</s>", "[SEP]" and ">>fra<<".
const SPECIAL = /^(<\/?[A-Za-z]+>|\[[A-Z]+\]|>>.+<<)$/;
const CLOSING = /^[.,;:!?…»”)\]]*$/;
// What those of them are called that a model reads or writes at every text.
const NAMES = {
  "<s>": "(start)", "[CLS]": "(start)", "</s>": "(end)", "[SEP]": "(end)", "<unk>": "(unknown)", "[UNK]": "(unknown)",
};
// The characters with which byte-level BPE writes bytes (Radford et al., 2019).
const range = (first, end) => Array.from({ length: end - first }, (_, place) => first + place);
const VISIBLE = [...range(0x21, 0x7f), ...range(0xa1, 0xad), ...range(0xae, 0x100)];
const OTHERS = range(0, 256).filter((byte) => !VISIBLE.includes(byte));
const BYTES = new Map([
  ...VISIBLE.map((byte) => [String.fromCharCode(byte), byte]),
  ...OTHERS.map((byte, place) => [String.fromCharCode(256 + place), byte]),
]);

/** Returns the words of a text's pieces, each with the number of its pieces. */
export function wordsOf(pieces) {
  const mark = [..."▁Ġ"].find((mark) => pieces.some((piece) => piece.includes(mark)));
  const groups = [];
  pieces.forEach((piece, place) => {
    if (place === 0 || begins(pieces, place, mark)) groups.push([]);
    groups.at(-1).push(piece);
  });
  return groups.map((group) => [textOf(group, mark), group.length]);
}

/** Whether the piece at a place begins a word; it is not the first. Closing marks at a word's end do. */
function begins(pieces, place, mark) {
  const piece = pieces[place];
  if (SPECIAL.test(piece) || SPECIAL.test(pieces[place - 1])) return true;
  if (mark === undefined) return !piece.startsWith("##");
  if (piece.startsWith(mark)) return true;
  const following = pieces.slice(place).find((piece) => !CLOSING.test(piece)) ?? mark;
  return CLOSING.test(piece) && (following.startsWith(mark) || SPECIAL.test(following));
}

/** Returns the pieces of a word joined, the bytes among them decoded. */
function textOf(group, mark) {
  if (group[0] in NAMES) return NAMES[group[0]];
  if (mark === undefined) return group.map((piece) => piece.replace(/^##/, "")).join("");
  const isInBytes = mark === "Ġ" && [...group.join("")].every((character) => BYTES.has(character));
  const bytes = group.flatMap((piece) => {
    if (isInBytes) return [...piece].map((character) => BYTES.get(character));
    const byte = BYTE.exec(piece);
    return byte ? parseInt(byte[1], 16) : [...new TextEncoder().encode(piece.replaceAll("▁", " "))];
  });
  return new TextDecoder().decode(new Uint8Array(bytes)).trim() || " ";
}
