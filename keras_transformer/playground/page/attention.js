/** The map of attention: point at a word of one side, and those of the other light up. */

const TOLD = 3; // Words that are named, those with the largest weights.
const LEAST = 0.005; // The smallest weight that is shown: 1 % once rounded.
const SIDES = ["source", "target"];
const HINT = "Point at a word, tap it, or go to it with the Tab key.";

export class AttentionMap {
  languages = { source: "", target: "" }; // Codes, or "".
  #root;
  #found = null; // The server's answer.
  #by = "words";
  #spans = { source: [], target: [] }; // First piece and the one after the last.
  #units = { source: [], target: [] }; // Buttons.
  #pointed = null; // {side, place}, as is what is pinned.
  #pinned = null;

  /** @param {Element} root The element with a row of units for each side. */
  constructor(root) {
    this.#root = root;
    for (const side of SIDES) this.#listen(side);
  }

  /** Shows the server's answer, or with `null` nothing, and why. */
  show(found, reason = "") {
    this.#found = found;
    this.#draw();
    if (!found) this.#tell(reason);
  }

  /** Shows whole "words", or the "pieces" that the model reads. */
  showBy(by) {
    this.#by = by;
    this.#draw();
  }

  #row(side) {
    return this.#root.querySelector(`[data-side="${side}"]`);
  }

  #draw() {
    this.#pointed = this.#pinned = null;
    for (const side of SIDES) {
      const { pieces, words } = this.#found?.[side] ?? { pieces: [], words: [] };
      const units = this.#by === "words" ? words : pieces.map((piece) => [piece, 1]);
      let first = 0;
      this.#spans[side] = units.map(([, count]) => [first, (first += count)]);
      this.#units[side] = units.map(([text]) => this.#unit(side, text));
      this.#row(side).replaceChildren(...this.#units[side]);
    }
    this.#light();
  }

  #unit(side, text) {
    const [unit, word] = ["button", "span"].map((name) => document.createElement(name));
    unit.type = "button";
    unit.className = "unit";
    word.dir = "auto";
    word.lang = this.languages[side];
    word.textContent = text;
    unit.append(word, document.createElement("small"));
    return unit;
  }

  #listen(side) {
    const row = this.#row(side);
    const on = (name, action) =>
      row.addEventListener(name, (event) => {
        const place = this.#units[side].indexOf(event.target.closest(".unit"));
        if (place >= 0) action({ side, place }, event);
      });
    // A finger that scrolls over the map points at nothing; its tap is a click.
    on("pointerover", (at, { pointerType }) => pointerType !== "touch" && this.#point(at));
    on("focusin", (at, { target }) => target.matches(":focus-visible") && this.#point(at));
    on("click", (at) => this.#pin(at));
    for (const name of ["pointerleave", "focusout"]) row.addEventListener(name, () => this.#point(null));
  }

  #point(at) {
    this.#pointed = at;
    this.#light();
  }

  /** Holds a unit once nothing is pointed at; a second time lets it go. */
  #pin({ side, place }) {
    const isSame = this.#pinned?.side === side && this.#pinned.place === place;
    this.#pinned = isSame ? null : { side, place };
    this.#point(this.#pinned);
  }

  /** Lights up what belongs to the unit that is pointed at, or else to the pinned one. */
  #light() {
    const at = this.#pointed ?? this.#pinned;
    const weighed = [];
    for (const side of SIDES) {
      this.#units[side].forEach((unit, place) => {
        const isAt = (one) => one?.side === side && one.place === place;
        unit.classList.toggle("active", isAt(at));
        unit.setAttribute("aria-pressed", String(isAt(this.#pinned)));
        const weight = at && at.side !== side ? this.#weight({ [at.side]: at.place, [side]: place }) : 0;
        unit.style.setProperty("--weight", Math.min(1, weight));
        unit.lastChild.textContent = weight >= LEAST ? percent(weight) : "";
        if (weight >= LEAST) weighed.push([weight, unit.firstChild.textContent]);
      });
    }
    if (!at) {
      this.#tell(HINT);
      return;
    }
    const largest = weighed.sort(([a], [b]) => b - a).slice(0, TOLD);
    const words = largest.map(([weight, text]) => `${text} ${percent(weight)}`);
    const verb = at.side === "target" ? "looks at" : "is looked at by";
    const text = this.#units[at.side][at.place].firstChild.textContent;
    this.#tell(`“${text}” ${verb} ${words.join(", ") || "nothing"}.`);
  }

  /** How much the target's unit looks at the source's: the mean over its own pieces. */
  #weight({ source, target }) {
    const [begin, end] = this.#spans.target[target];
    const [first, last] = this.#spans.source[source];
    const rows = this.#found.weights.slice(begin, end).map((row) => row.slice(first, last));
    return rows.flat().reduce((sum, weight) => sum + weight, 0) / (end - begin);
  }

  #tell(text) {
    const told = this.#root.querySelector(".told");
    if (told.textContent !== text) told.textContent = text;
  }
}

function percent(weight) {
  return `${Math.round(100 * weight)} %`;
}
