/** The matrix of attention: a row for each word of the translation, a column for each of the text. */

import { wordsOf } from "./words.js";

const TOLD = 3; // Words that are named, those with the largest weights.
const LEAST = 0.005; // The smallest weight that is named: 1 % once rounded.
const SHOWN = 0.05; // The smallest weight that is written into its cell.
const HINT = "Point at a word, tap it, or go to it with the Tab key.";

export class AttentionMap {
  languages = { source: "", target: "" }; // Codes, or "".
  #root;
  #found = null; // What the signature `align` answers.
  #by = "words";
  #units = { source: [], target: [] }; // Text, first piece and the one after the last.
  #weights = []; // A row for each of the target's units.

  /** @param {Element} root The element with a table and a line that tells. */
  constructor(root) {
    this.#root = root;
    const table = this.#table;
    const on = (name, action) => table.addEventListener(name, (event) => action(event.target.closest("th, td"), event));
    // A finger that scrolls over the table points at nothing; its tap is a click.
    on("pointerover", (cell, { pointerType }) => pointerType !== "touch" && this.#point(cell));
    on("focusin", (cell, { target }) => target.matches(":focus-visible") && this.#point(cell));
    on("click", (cell) => this.#point(cell));
    table.addEventListener("pointerleave", ({ pointerType }) => pointerType !== "touch" && this.#point(null));
    table.addEventListener("focusout", () => this.#point(null));
  }

  /** Shows what the signature `align` answers, or with `null` nothing. */
  show(found) {
    this.#found = found;
    this.#draw();
  }

  /** Shows whole "words", or the "pieces" that the model reads. */
  showBy(by) {
    this.#by = by;
    this.#draw();
  }

  get #table() {
    return this.#root.querySelector("table");
  }

  #draw() {
    for (const side of ["source", "target"]) {
      const pieces = this.#found?.[`${side}_tokens`] ?? [];
      const units = this.#by === "words" ? wordsOf(pieces) : pieces.map((piece) => [piece, 1]);
      let first = 0;
      this.#units[side] = units.map(([text, count]) => ({ text, first, last: (first += count) }));
    }
    const { source, target } = this.#units;
    this.#weights = target.map((row) => source.map((column) => this.#weight(row, column)));
    const head = document.createElement("tr");
    head.append(document.createElement("td"), ...source.map(({ text }) => heading("col", text, this.languages.source)));
    const rows = this.#weights.map((weights, place) => {
      const row = document.createElement("tr");
      const largest = Math.max(...weights, LEAST);
      const cells = weights.map((weight) => {
        const cell = document.createElement("td");
        cell.style.setProperty("--weight", weight / largest);
        cell.textContent = weight >= SHOWN ? Math.round(100 * weight) : "";
        return cell;
      });
      row.append(heading("row", target[place].text, this.languages.target), ...cells);
      return row;
    });
    this.#table.replaceChildren(...(this.#found ? [head, ...rows] : []));
    this.#point(null);
  }

  /** How much the target's unit looks at the source's: the mean over its own pieces. */
  #weight(row, column) {
    const rows = this.#found.attention.slice(row.first, row.last);
    const parts = rows.flatMap((weights) => weights.slice(column.first, column.last));
    return parts.reduce((sum, weight) => sum + weight, 0) / rows.length;
  }

  /** Tells what the row or column of a cell looks at, or is looked at by. */
  #point(cell) {
    for (const one of this.#table.querySelectorAll(".active")) one.classList.remove("active");
    const [row, column] = [(cell?.parentNode.rowIndex ?? 0) - 1, (cell?.cellIndex ?? 0) - 1];
    if (row < 0 && column < 0) {
      this.#tell(HINT);
      return;
    }
    const { source, target } = this.#units;
    const isRow = row >= 0;
    const weights = isRow ? this.#weights[row] : this.#weights.map((weights) => weights[column]);
    const others = isRow ? source : target;
    const words = weights
      .map((weight, place) => [weight, others[place].text])
      .filter(([weight]) => weight >= LEAST)
      .sort(([a], [b]) => b - a)
      .slice(0, TOLD)
      .map(([weight, text]) => `“${text}” ${Math.round(100 * weight)} %`);
    const [text, verb] = isRow ? [target[row].text, "looks at"] : [source[column].text, "is looked at by"];
    this.#tell(`“${text}” ${verb} ${words.join(", ") || "nothing"}.`);
    const { rows } = this.#table;
    if (isRow) rows[row + 1].cells[0].classList.add("active");
    if (column >= 0) rows[0].cells[column + 1].classList.add("active");
  }

  #tell(text) {
    const told = this.#root.querySelector(".told");
    if (told.textContent !== text) told.textContent = text;
  }
}

/** Returns the heading of a row or a column. */
function heading(scope, text, language) {
  const [head, button] = ["th", "button"].map((name) => document.createElement(name));
  head.scope = scope;
  button.type = "button";
  button.dir = "auto";
  button.lang = language;
  button.textContent = text;
  head.append(button);
  return head;
}
