// Standard input: {"module", "rows"}. Prints the doubts of each row, and its best place.
import { readFileSync } from "node:fs";

const { module, rows } = JSON.parse(readFileSync(0, "utf8"));
const { doubtsOf, bestPlace } = await import(module);
const lost = [[], ["a"], []];
const found = rows.map((row) => {
  const translations = [row[1], "well", row[0]].map((text, place) => {
    return { doubts: doubtsOf(row[0], text), lost: lost[place] };
  });
  return [doubtsOf(...row), bestPlace(translations)];
});
console.log(JSON.stringify(found));
