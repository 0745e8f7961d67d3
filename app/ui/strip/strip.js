// The token strip: one span a cell, classes toggled in place. Comes after words.js, in one module with it.

const STATE = { K: 1, W: 2, S: 4, L: 8, F: 16, X: 32, Y: 64, G: 128 };
const STEPS = 4;
const PLAIN = { className: " plain" };
const SINGLE = Array.from({ length: 64 }, (_, g) => ({ className: " g" + (g % 16) }));

class Strip extends Words {
  constructor(root, send) {
    super();
    this.root = root;
    this.send = send;
    this.box = root.querySelector(".text");
    this.bar = root.querySelector(".bar");
    this.say = root.querySelector(".say");
    this.tip = root.querySelector(".tip");
    this.live = root.querySelector(".sr");
    this.pin = null;
    this.query = null;
    this.serial = null;
    this.tokens = null;
    this.listen();
  }

  // ---- data ------------------------------------------------------------------------------------------------------

  update(data) {
    this.data = data;
    const same = this.tokens && this.tokens.length === data.cells.length && this.total === data.count &&
      this.tokens.every((t, i) => t === data.cells[i]);
    if (!same) this.build(data);
    const view = [data.layer, data.mode, data.window, data.sinks, data.k && data.k[0], data.q && data.q[0], data.blocks && data.blocks.bits, data.change].join("|");
    if (!same || view !== this.view) {
      this.view = view;
      this.hideTip();
      this.dress(data);
    }
    this.lost = new Map();
    if (data.lost) data.lost.keys.forEach((key, i) => this.lost.set(key, data.lost.mass[i]));
    if (data.select && data.select[1] !== this.serial) {
      bringIntoView(this.root, this.serial === null);
      this.serial = data.select[1];
      this.setPin(data.select[0], true);
      this.reveal(this.cellOf[data.select[0]]);
    } else if (this.pin !== null && this.pin >= data.count) {
      this.setPin(null);
    } else {
      this.light(this.pin !== null ? this.pin : this.query);
    }
  }

  build(data) {
    const began = performance.now();
    const n = data.cells.length;
    this.tokens = data.cells;
    this.total = data.count;
    this.first = new Int32Array(n + 1);
    this.cellOf = new Int32Array(data.count);
    const part = document.createDocumentFragment();
    this.spans = new Array(n);
    this.striped = new Set();
    let token = 0;
    for (let c = 0; c < n; c++) {
      const size = data.several[c] || 1;
      this.first[c] = token;
      for (let t = 0; t < size; t++) this.cellOf[token++] = c;
      const span = document.createElement("span");
      // The leading space stays outside, so that a line never ends or begins with a sliver of colour.
      const text = data.cells[c], lead = text.length > 1 && text[0] === " " && text.trim() !== "";
      if (lead) part.append(" ");
      span.textContent = lead ? text.slice(1) : text;
      span.cell = c;
      this.spans[c] = span;
      part.appendChild(span);
    }
    this.first[n] = token;
    this.ids = data.ids ? unpack(data.ids, Int32Array) : null;
    this.state = new Uint8Array(n);
    this.wanted = this.state.slice();
    this.box.replaceChildren(part);
    if (this.pin !== null) this.send(null);
    this.pin = this.query = null;
    this.root.dataset.built = String(Number(this.root.dataset.built || 0) + 1);
    this.root.dataset.buildMs = (performance.now() - began).toFixed(1);
  }

  dress(data) {
    const n = this.spans.length;
    this.k = data.k ? words(data.k, data.count) : null;
    this.q = data.q ? words(data.q, data.count) : null;
    this.change = data.change ? unpack(data.change, Float32Array) : null;
    this.blocks = data.blocks ? unpack(data.blocks.bits, Uint8Array) : null;
    this.base = new Array(n);
    for (let c = 0; c < n; c++) {
      const span = this.spans[c];
      const kind = this.kindOf(c);
      const mixed = kind.mixed;
      this.base[c] = "c" + this.spaceClass(c) + kind.className;
      if (mixed) span.style.setProperty("--stripes", mixed);
      else if (this.striped.has(c)) span.removeAttribute("style");
      if (mixed) this.striped.add(c);
      else this.striped.delete(c);
      span.className = this.base[c] + this.stateClass(this.state[c]);
    }
    this.root.classList.toggle("damage", data.mode === "damage");
    this.legend(data);
  }

  kindOf(c) {
    if (this.data.mode === "damage") {
      let sum = 0;
      for (let t = this.first[c]; t < this.first[c + 1]; t++) sum += this.change ? this.change[t] : 0;
      const step = Math.max(-STEPS, Math.min(STEPS, Math.round((sum / this.data.scale) * STEPS)));
      return { className: step ? (step < 0 ? " bad" + -step : " good" + step) : " plain" };
    }
    if (!this.k) return PLAIN;
    const low = this.k.low[this.first[c]], only = this.first[c + 1] - this.first[c] === 1 && !this.k.high[this.first[c]];
    if (only && low && !(low & (low - 1))) return SINGLE[31 - Math.clz32(low)];
    const seen = [];
    for (let t = this.first[c]; t < this.first[c + 1]; t++) {
      for (const g of groupsOf(this.k, t)) if (!seen.includes(g)) seen.push(g);
    }
    if (!seen.length) return PLAIN;
    if (seen.length === 1) return SINGLE[seen[0]];
    const stops = seen.slice(0, 4).map((g, i) => `var(--g${g % 16}) ${i * 5}px ${i * 5 + 5}px`).join(",");
    return { className: " mix", mixed: `repeating-linear-gradient(115deg,${stops})` };
  }

  spaceClass(c) {
    const text = this.tokens[c];
    if (text.includes("\n")) return " nl";
    if (text === "\t") return " tab";
    if (text.trim() === "") return " gap";
    // A narrow mark before a space may take a little of it, so that its letter is whole.
    return text.length === 1 && ",;.:!?".includes(text) && /^\s/.test(this.tokens[c + 1] || "") ? " thin" : "";
  }

  stateClass(s) {
    if (!s) return "";
    return (s & STATE.K ? " k" : "") + (s & STATE.W ? " w" : "") + (s & STATE.S ? " s" : "") + (s & STATE.L ? " l" : "") +
      (s & STATE.F ? " f" : "") + (s & STATE.X ? " x" : "") + (s & STATE.Y ? " y" : "") + (s & STATE.G ? " g" : "");
  }

  // ---- what a query sees -----------------------------------------------------------------------------------------

  sees(i, j) {
    if (j > i) return 0;
    let s = 0;
    if (this.k && ((this.q.low[i] & this.k.low[j]) | (this.q.high[i] & this.k.high[j]))) s |= STATE.K;
    if (this.blocks) {
      const { size, columns } = this.data.blocks;
      if (this.blocks[Math.floor(i / size) * columns + Math.floor(j / size)]) s |= STATE.K;
    }
    if (i - j < this.data.window) s |= STATE.W;
    if (j < this.data.sinks) s |= STATE.S;
    return s;
  }

  askOf(token) {
    return this.data.mode === "damage" ? Math.max(0, token - 1) : token;
  }

  light(token) {
    const n = this.spans.length;
    const next = new Uint8Array(n);
    if (token !== null && token !== undefined) {
      const i = this.askOf(token);
      const marks = this.pin !== null && this.data.lost && this.data.lost.query === i;
      for (let j = 0; j < this.total; j++) {
        let s = j > i ? STATE.F : this.sees(i, j);
        if (marks && this.lost.has(j)) s |= STATE.L;
        next[this.cellOf[j]] |= s;
      }
      if (i !== token) next[this.cellOf[i]] |= STATE.Y;
      next[this.cellOf[token]] = (next[this.cellOf[token]] & ~STATE.F) | STATE.X;
    }
    this.apply(next, token !== null && token !== undefined);
    this.sentence(token);
  }

  lightGroup(g) {
    const next = new Uint8Array(this.spans.length);
    const set = g < 32 ? this.k.low : this.k.high;
    for (let j = 0; j < this.total; j++) if ((set[j] >>> (g % 32)) & 1) next[this.cellOf[j]] |= STATE.K | STATE.G;
    this.apply(next, true);
  }

  apply(next, on) {
    this.wanted = next;
    // A query that is only pointed at is gone with the next move: what is out of sight waits until it is scrolled to.
    const [from, to] = this.pin === null && on ? this.inSight() : [0, next.length];
    this.show(from, to);
    this.root.classList.toggle("on", on);
    this.root.classList.toggle("pinned", this.pin !== null);
  }

  show(from, to) {
    for (let c = from; c < to; c++) {
      if (this.wanted[c] === this.state[c]) continue;
      this.state[c] = this.wanted[c];
      this.spans[c].className = this.base[c] + this.stateClass(this.state[c]);
    }
  }

  // The cells on screen with half a screen around them, [from, to).
  inSight() {
    const { scrollTop, clientHeight } = this.box;
    const key = scrollTop + "/" + clientHeight + "/" + this.box.clientWidth + "/" + this.root.dataset.built;
    if (this.sight && this.sight.key === key) return this.sight.cells;
    const cells = [this.cellBelow(scrollTop - clientHeight / 2), this.cellBelow(scrollTop + 1.5 * clientHeight)];
    this.sight = { key, cells };
    return cells;
  }

  // The first cell whose line begins at or below a height; cells stand in the order of their lines.
  cellBelow(height) {
    let low = 0, high = this.spans.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.spans[middle].offsetTop < height) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  count(i) {
    let group = 0, near = 0, sink = 0;
    for (let j = 0; j <= i; j++) {
      const s = this.sees(i, j);
      if (s & STATE.W) near++;
      else if (s & STATE.S) sink++;
      else if (s & STATE.K) group++;
    }
    return { group, near, sink, all: group + near + sink };
  }

  // ---- input -----------------------------------------------------------------------------------------------------

  setPin(token, quiet) {
    this.pin = token;
    this.query = token;
    this.light(token);
    if (!quiet || token !== null) {
      clearTimeout(this.waiting);
      this.waiting = setTimeout(() => this.send(token), this.fast ? 120 : 0);
      this.fast = false;
    }
    if (token !== null) this.live.textContent = this.say.textContent;
  }

  tokenAt(event) {
    const span = event.target;
    if (span.cell === undefined) return null;
    return this.first[span.cell + 1] - 1;
  }

  reveal(c) {
    const span = this.spans[c], box = this.box;
    const top = span.offsetTop - box.offsetTop;
    const where = box.style.position === "static" ? top : span.offsetTop;
    if (where < box.scrollTop + 8) box.scrollTop = where - 40;
    else if (where + 44 > box.scrollTop + box.clientHeight) box.scrollTop = where - box.clientHeight + 90;
  }

  listen() {
    const box = this.box;
    box.addEventListener("mousemove", (event) => {
      const token = this.tokenAt(event);
      if (token === null) return;
      if (token !== this.hover) {
        this.hover = token;
        if (this.pin === null) {
          this.query = token;
          this.light(token);
        }
      }
      this.showTip(token, event.clientX, event.clientY);
    });
    box.addEventListener("mouseleave", () => {
      this.hover = null;
      this.hideTip();
      if (this.pin === null) {
        this.query = null;
        this.light(null);
      }
    });
    box.addEventListener("scroll", () => {
      this.hideTip();
      this.show(...this.inSight());
    }, { passive: true });
    box.addEventListener("click", (event) => {
      const token = this.tokenAt(event);
      if (token === null) return;
      this.setPin(token === this.pin ? null : token);
    });
    box.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const now = this.pin !== null ? this.pin : this.query;
    let to = null;
    if (event.key === "Escape") {
      this.hideTip();
      if (this.pin === null) return;
      this.setPin(null);
      event.preventDefault();
      return;
    }
    if ((event.key === "Enter" || event.key === " ") && now !== null) {
      this.setPin(this.pin === null ? now : null);
      event.preventDefault();
      return;
    }
    if (event.key === "ArrowRight") to = now === null ? 0 : now + 1;
    else if (event.key === "ArrowLeft") to = now === null ? 0 : now - 1;
    else if (event.key === "Home") to = 0;
    else if (event.key === "End") to = this.total - 1;
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") to = now === null ? 0 : this.otherLine(now, event.key === "ArrowDown" ? 1 : -1);
    if (to === null) return;
    event.preventDefault();
    to = Math.max(0, Math.min(this.total - 1, to));
    this.fast = true;
    if (this.pin !== null) this.setPin(to);
    else {
      this.query = to;
      this.light(to);
      this.live.textContent = this.say.textContent;
    }
    const c = this.cellOf[to];
    this.reveal(c);
    const place = this.spans[c].getClientRects()[0];
    if (place) this.showTip(to, place.left, place.bottom - 14);
  }

  otherLine(token, step) {
    const from = this.spans[this.cellOf[token]];
    const x = from.offsetLeft + from.offsetWidth / 2, y = from.offsetTop;
    let c = this.cellOf[token], line = null, best = null, gap = Infinity;
    for (c += step; c >= 0 && c < this.spans.length; c += step) {
      const span = this.spans[c];
      if (Math.abs(span.offsetTop - y) < 8) continue;
      if (line === null) line = span.offsetTop;
      if (Math.abs(span.offsetTop - line) >= 8) break;
      const away = Math.abs(span.offsetLeft + span.offsetWidth / 2 - x);
      if (away < gap) [gap, best] = [away, c];
    }
    return best === null ? token : this.first[best + 1] - 1;
  }
}

export default function (component) {
  const { data, parentElement, setStateValue } = component;
  const root = parentElement.querySelector(".fl");
  if (!root.strip) root.strip = new Strip(root, (token) => root.strip.setState("pinned", token));
  root.strip.setState = setStateValue;
  root.strip.update(data);
}
