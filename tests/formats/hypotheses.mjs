// Standard input: {"module", "rules", "texts", "hypotheses"}. Prints what the page's translator
// makes of each text, if a search finds these hypotheses with the scores -1, -2, ...
import { readFileSync } from "node:fs";

const { module, rules, texts, hypotheses } = JSON.parse(readFileSync(0, "utf8"));
const { Translator } = await import(module);
const FIRST = 10; // Id of the first hypothesis; 2 ends each.

class Tensor {
  constructor(values) {
    this.values = values;
  }
  data() {
    return this.values;
  }
  delete() {}
}

const source = { encode: (text) => Array.from(text.trim()), pieceOf: (id) => String(id) };
const target = { decode: ([id]) => hypotheses[id - FIRST] };
const model = {
  run: () => ({
    ids: new Tensor(Int32Array.from(hypotheses.flatMap((_, i) => [FIRST + i, 2]))),
    scores: new Tensor(Float32Array.from(hypotheses, (_, i) => -1 - i)),
  }),
};
const description = {
  special_ids: { pad_id: 0, start_id: 1, end_id: 2 },
  max_source_length: 40,
  lengths: [40],
  search: { doubt_above: 0.5, doubt_steps: [[-9, 0.75], [-2.5, 0.25]] },
  ...rules,
};
const translator = new Translator(description, { source, target }, model, Tensor);
const found = [];
for (const text of texts) found.push(await translator.translate(text));
console.log(JSON.stringify(found));
