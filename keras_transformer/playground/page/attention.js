/** The map of attention: point at a word of one side, and those of the other light up. */

const TOLD = 3; // Words that are named, those with the largest weights.
const OTHER = { source: "target", target: "source" };
const HINT = "Point at a word, tap it, or go to it with the Tab and arrow keys.";

export class AttentionMap {
  #root;
  #languages;
  #found; // The server's answer, or `null`.
  #by = "words";
  #spans = { source: [], target: [] }; // First piece and the one after the last.
  #units = { source: [], target: [] }; // Buttons.
  #pinned = null; // {side, place}, as is what is pointed at.
  #focused = null;

  /**
   * @param {Element} root The element with a row of units for each side.
   * @param {{source: string, target: string}} languages Codes, or "".
   */
  constructor(root, languages) {
    this.#root = root;
    this.#languages = languages;
    for (const side of ["source", "target"]) this.#listen(side);
    this.show(null);
  }

  /** Shows the server's answer; with `null`, nothing. */
  show(found) {
    this.#found = found;
    this.#draw();
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
    this.#pinned = this.#focused = null;
    for (const side of ["source", "target"]) this.#drawRow(side);
    this.#light(null);
  }

  #drawRow(side) {
    const { pieces, words } = this.#found?.[side] ?? { pieces: [], words: [] };
    const units = this.#by === "words" ? words : pieces.map((piece) => [piece, 1]);
    let first = 0;
    this.#spans[side] = units.map(([, count]) => [first, (first += count)]);
    this.#units[side] = units.map(([text], place) => {
      const unit = document.createElement("button");
      unit.type = "button";
      unit.className = "unit";
      unit.tabIndex = place === 0 ? 0 : -1; // The arrow keys lead to the others.
      unit.setAttribute("aria-pressed", "false");
      const words = document.createElement("span");
      words.dir = "auto";
      words.lang = this.#languages[side];
      words.textContent = text;
      unit.append(words, document.createElement("small"));
      return unit;
    });
    this.#row(side).replaceChildren(...this.#units[side]);
  }

  #listen(side) {
    const row = this.#row(side);
    const placeOf = (event) => this.#units[side].indexOf(event.target.closest(".unit"));
    const whenOn = (action) => (event) => {
      const place = placeOf(event);
      if (place >= 0) action({ side, place }, event);
    };
    // A finger that scrolls over the map points at nothing; its tap is a click.
    const isMouse = (event) => event.pointerType !== "touch";
    row.addEventListener("pointerover", whenOn((at, event) => isMouse(event) && this.#light(at)));
    row.addEventListener("pointerleave", () => this.#light(this.#pinned ?? this.#focused));
    row.addEventListener("click", whenOn((at) => this.#pin(at)));
    row.addEventListener(
      "focusin",
      whenOn((at, event) => {
        if (!event.target.matches(":focus-visible")) return;
        this.#focused = at;
        this.#light(at);
      }),
    );
    row.addEventListener("focusout", () => {
      this.#focused = null;
      this.#light(this.#pinned);
    });
    row.addEventListener("keydown", whenOn((at, event) => this.#move(at, event)));
  }

  #pin(at) {
    const isSame = this.#pinned?.side === at.side && this.#pinned.place === at.place;
    this.#pinned = isSame ? null : at;
    for (const side of ["source", "target"]) {
      this.#units[side].forEach((unit, place) => {
        const isPinned = this.#pinned?.side === side && this.#pinned.place === place;
        unit.setAttribute("aria-pressed", String(isPinned));
      });
    }
    this.#light(isSame ? null : at);
  }

  #move({ side, place }, event) {
    if (event.key === "Escape" && this.#pinned) this.#pin(this.#pinned);
    const units = this.#units[side];
    const isLeftward = getComputedStyle(this.#row(side)).direction === "rtl";
    const step = isLeftward ? -1 : 1;
    const places = {
      ArrowRight: place + step,
      ArrowLeft: place - step,
      Home: 0,
      End: units.length - 1,
    };
    const next = units[places[event.key]];
    if (!next) return;
    event.preventDefault();
    units.forEach((unit) => (unit.tabIndex = unit === next ? 0 : -1));
    next.focus();
  }

  /** Lights up what belongs to a unit; with `null`, nothing. */
  #light(at) {
    for (const side of ["source", "target"]) {
      this.#units[side].forEach((unit, place) => {
        unit.classList.toggle("active", at?.side === side && at.place === place);
        const weight = at && at.side !== side ? this.#weight(at, place) : 0;
        unit.style.setProperty("--weight", Math.min(1, weight));
        unit.lastChild.textContent = weight >= 0.005 ? percent(weight) : "";
      });
    }
    const told = this.#root.querySelector(".told");
    const text = this.#found ? (at ? this.#told(at) : HINT) : "";
    if (told.textContent !== text) told.textContent = text;
  }

  /** How much the target's unit looks at the source's: the mean over its own pieces. */
  #weight(at, place) {
    const places = { [at.side]: at.place, [OTHER[at.side]]: place };
    const [begin, end] = this.#spans.target[places.target];
    const [first, last] = this.#spans.source[places.source];
    let sum = 0;
    for (let row = begin; row < end; row += 1) {
      for (let column = first; column < last; column += 1) {
        sum += this.#found.weights[row][column];
      }
    }
    return sum / (end - begin);
  }

  #told(at) {
    const name = (side, place) => this.#units[side][place].firstChild.textContent;
    const other = OTHER[at.side];
    const weights = this.#units[other].map((_, place) => [this.#weight(at, place), place]);
    const largest = weights.sort(([a], [b]) => b - a).slice(0, TOLD);
    const words = largest
      .filter(([weight]) => weight >= 0.005)
      .map(([weight, place]) => `${name(other, place)} ${percent(weight)}`);
    const verb = at.side === "target" ? "looks at" : "is looked at by";
    return `“${name(at.side, at.place)}” ${verb} ${words.join(", ") || "nothing"}.`;
  }
}

function percent(weight) {
  return `${Math.round(100 * weight)} %`;
}
