// Standard input: {"module", "rules", "texts", "translations"}. Prints what becomes of each.
import { readFileSync } from "node:fs";

const { module, rules, texts, translations } = JSON.parse(readFileSync(0, "utf8"));
const { SpanFinder } = await import(module);
const finder = new SpanFinder(rules);
const found = texts.map((text, i) => {
  const hidden = finder.hidden(text);
  const { text: restored, lost } = finder.restored(translations[i], hidden.spans);
  const { spans } = hidden;
  return [hidden.text, spans, finder.marked(hidden), finder.seen(hidden), restored, lost];
});
console.log(JSON.stringify(found));
