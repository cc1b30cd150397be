// Standard input: {"site", "model", "description", "texts", "swap"}. Prints what the
// page's translator makes of texts with a model that copies the source.
import { readFileSync } from "node:fs";

const { site, model, description, texts, swap } = JSON.parse(readFileSync(0, "utf8"));
const { SentencePiece } = await import(`${site}/sentencepiece.js`);
const { Translator } = await import(`${site}/translator.js`);
const tokenizer = new SentencePiece(readFileSync(model));
class Tensor {
  constructor(values) {
    this.values = values;
  }
  data() {
    return this.values;
  }
  delete() {}
}
const copying = {
  async run(name, { source }) {
    const ids = source.values.map((id) => (id === swap[0] ? swap[1] : id));
    return { ids: new Tensor(ids), scores: new Tensor(Float32Array.of(0)) };
  },
};
const tokenizers = { source: tokenizer, target: tokenizer };
const translator = new Translator(description, tokenizers, copying, Tensor);
const found = [];
for (const text of texts) {
  const translations = await translator.translate(text);
  found.push([translations[0].text, translations[0].lost]);
}
console.log(JSON.stringify(found));
