// The text, from which a query and a key are picked: shaded by what the query attends to with codes.

function piece(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function floats(packed) {
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

function share(value) {
  return value >= 0.0995 ? `${(100 * value).toFixed(0)} %` : value >= 0.0001 ? `${(100 * value).toPrecision(2)} %` : "under 0.01 %";
}

class Picker {
  constructor(root) {
    this.root = root;
    this.box = root.querySelector(".text");
    this.tip = root.querySelector(".tip");
    this.live = root.querySelector(".sr");
    this.buttons = [...root.querySelectorAll("button[data-side]")];
    this.side = "key";
    this.cursor = null;
    for (const button of this.buttons) button.addEventListener("click", () => this.choose(button.dataset.side));
    this.box.addEventListener("mousemove", (event) => this.point(this.cellAt(event), event.clientX, event.clientY));
    this.box.addEventListener("mouseleave", () => this.point(null));
    this.box.addEventListener("click", (event) => this.pick(this.cellAt(event), event.shiftKey));
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("blur", () => this.point(null));
  }

  update(data) {
    const same = this.data && this.data.cells.length === data.cells.length && this.data.cells.every((c, i) => c === data.cells[i]);
    const first = !this.data;
    this.data = data;
    if (!same) this.build();
    this.dense = floats(data.dense);
    this.sparse = floats(data.sparse);
    this.shared = Uint8Array.from(atob(data.shared), (c) => c.charCodeAt(0));
    this.dress();
    if (!same || first) this.reveal();
    this.choose(this.side);
  }

  build() {
    const { cells, first } = this.data, part = document.createDocumentFragment();
    this.spans = cells.map((text, c) => {
      const lead = text.length > 1 && text[0] === " " && text.trim() !== "";
      if (lead) part.append(" ");
      const span = piece("span", "c", lead ? text.slice(1) : text);
      span.cell = c;
      part.append(span);
      return span;
    });
    this.cellOf = new Int32Array(first[first.length - 1]);
    for (let c = 0; c < cells.length; c++) for (let t = first[c]; t < first[c + 1]; t++) this.cellOf[t] = c;
    this.box.replaceChildren(part);
  }

  dress() {
    const { cells, first, query, key } = this.data;
    for (let c = 0; c < cells.length; c++) {
      const span = this.spans[c];
      let sparse = 0, lost = 0;
      for (let t = first[c]; t < Math.min(first[c + 1], query + 1); t++) {
        sparse += this.sparse[t];
        lost += Math.max(0, this.dense[t] - this.sparse[t]);
      }
      const seen = first[c] <= query;
      span.className = "c" + (cells[c].includes("\n") ? " nl" : cells[c].trim() ? "" : " gap") + (seen ? "" : " later")
        + (this.cellOf[query] === c ? " q" : "") + (this.cellOf[key] === c ? " k" : "");
      span.style.setProperty("--got", seen ? `${Math.round(70 * Math.sqrt(Math.min(1, sparse)))}%` : "0%");
      span.style.setProperty("--lost", seen ? `${Math.round(100 * Math.sqrt(Math.min(1, lost)))}%` : "0%");
    }
  }

  reveal() {
    const at = this.spans[this.cellOf[this.data.query]];
    if (at) this.box.scrollTop = Math.max(0, at.offsetTop - this.box.clientHeight * 0.6);
  }

  choose(side) {
    this.side = side;
    for (const button of this.buttons) button.setAttribute("aria-pressed", String(button.dataset.side === side));
  }

  cellAt(event) {
    const span = event.target.closest && event.target.closest(".c");
    return span && this.box.contains(span) ? span.cell : null;
  }

  words(c) {
    const { first, query, dim } = this.data, t = first[c], lines = [];
    if (t > query) return [`token ${t + 1}`, "comes after the query, which never sees it"];
    lines.push(`token ${t + 1}${t === query ? ", the query itself" : ""}`);
    lines.push(`attention: dense ${share(this.dense[t])}, with codes ${share(this.sparse[t])}`);
    lines.push(`shares ${this.shared[t]} of ${dim} dimensions with the query`);
    return lines;
  }

  point(c, x, y) {
    if (this.cursor !== null && this.spans[this.cursor]) this.spans[this.cursor].classList.remove("at");
    this.cursor = c;
    if (c === null) {
      this.tip.style.visibility = "hidden";
      return;
    }
    this.spans[c].classList.add("at");
    this.tip.replaceChildren(piece("b", "", this.data.cells[c].trim() || "␣"), ...this.words(c).map((line) => piece("span", "row", line)));
    const size = this.tip.getBoundingClientRect();
    const left = x + 14 + size.width > window.innerWidth - 8 ? x - size.width - 12 : x + 14;
    const top = y + 18 + size.height > window.innerHeight ? y - size.height - 14 : y + 18;
    this.tip.style.transform = `translate(${Math.round(Math.max(4, left))}px, ${Math.round(Math.max(4, top))}px)`;
    this.tip.style.visibility = "visible";
  }

  pick(c, other) {
    if (c === null) return;
    const token = this.data.first[c];
    let { query, key } = this.data;
    const side = other ? (this.side === "key" ? "query" : "key") : this.side;
    if (side === "key" && token <= query) key = token;
    else {
      query = token;
      key = Math.min(key, token);
    }
    this.send("picked", [query, key]);
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10 }[event.key];
    const now = this.cursor ?? this.cellOf[this.side === "key" ? this.data.key : this.data.query];
    if (step !== undefined) {
      const c = Math.max(0, Math.min(this.spans.length - 1, this.cursor === null ? now : now + step));
      const box = this.spans[c].getBoundingClientRect();
      this.point(c, box.left, box.bottom - 12);
      this.spans[c].scrollIntoView({ block: "nearest" });
      this.live.textContent = [this.data.cells[c], ...this.words(c)].join(". ");
    } else if (event.key === "Enter" || event.key === " ") this.pick(now, event.shiftKey);
    else if (event.key === "Escape") this.point(null);
    else return;
    event.preventDefault();
  }
}

export default function (component) {
  const { data, parentElement, setStateValue } = component;
  const root = parentElement.querySelector(".fx");
  if (!root.picker) root.picker = new Picker(root);
  root.picker.send = setStateValue;
  root.picker.update(data);
}
