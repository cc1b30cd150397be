// Standard input: {"module", "rows", "steps"}. Prints each row's doubts, and its best place.
import { readFileSync } from "node:fs";

const { module, rows, steps } = JSON.parse(readFileSync(0, "utf8"));
const { bestPlace, doubtAt, doubtsOf, isForeign } = await import(module);
const lost = [[], ["a"], []];
const found = rows.map((row) => {
  const translations = [row[1], "well", row[0]].map((text, place) => {
    return { doubts: doubtsOf(row[0], text), lost: lost[place] };
  });
  const [source, target, score, pieces] = row;
  const isUnlikely = doubtAt(score, steps) > 0.5;
  const doubts = doubtsOf(source, target, isUnlikely, isForeign(source, pieces));
  return [doubts, bestPlace(translations)];
});
console.log(JSON.stringify(found));
