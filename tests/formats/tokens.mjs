// Standard input: {"site", "model", "description", "texts", "rows"}. Prints what the
// page's own code makes of them: {"sources": [{ids, isCut}], "targets": [text]}.
import { readFileSync } from "node:fs";

const { site, model, description, texts, rows } = JSON.parse(readFileSync(0, "utf8"));
const { SentencePiece } = await import(`${site}/sentencepiece.js`);
const { sourceIds, textOf } = await import(`${site}/translator.js`);
const tokenizer = new SentencePiece(readFileSync(model));
const sources = texts.map((text) => sourceIds(tokenizer, text, description));
const targets = rows.map((row) => textOf(tokenizer, row, description));
console.log(JSON.stringify({ sources, targets }));
