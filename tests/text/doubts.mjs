// Standard input: {"module", "rows"}. Prints the doubts of each row, and its best place.
import { readFileSync } from "node:fs";

const { module, rows } = JSON.parse(readFileSync(0, "utf8"));
const { doubtsOf, bestPlace } = await import(module);
const lost = [[], ["a"], []];
const found = rows.map((row) => {
  return [doubtsOf(...row), bestPlace(row[0], [row[1], "well", row[0]], lost)];
});
console.log(JSON.stringify(found));
