// Standard input: {"module", "rules", "texts", "longest"}. Prints the parts of each text.
import { readFileSync } from "node:fs";

const { module, rules, texts, longest } = JSON.parse(readFileSync(0, "utf8"));
const { SentenceSplitter } = await import(module);
const splitter = new SentenceSplitter(rules);
const isTooLong = (sentence) => Array.from(sentence).length > longest;
console.log(JSON.stringify(texts.map((text) => splitter.split(text, isTooLong))));
