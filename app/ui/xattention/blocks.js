// Block scores with the kept set, the picked block from near, and its row's cut. Comes after its parts, in one module.

function same(a, b) {
  return a[0] === b[0] && a[1] === b[1];
}

class Blocks {
  constructor(root) {
    this.root = root;
    this.tip = root.querySelector(".tip");
    this.live = root.querySelector(".sr");
    this.map = new BlockMap(this, root.querySelector(".map"));
    this.detail = new BlockDetail(this, root.querySelector(".near"));
    this.curve = new CutCurve(this, root.querySelector(".cut"));
    this.picked = this.waiting = this.serial = null;
    new ResizeObserver(() => this.draw()).observe(root);
    onTheme(root, () => this.draw());
  }

  update(data) {
    const began = performance.now();
    this.data = {
      ...data,
      share: unpack(data.share, Float32Array), real: unpack(data.real, Float32Array), marks: unpack(data.marks, Uint8Array),
      rank: unpack(data.rank, Int16Array),
      forcedText: (j) => (j === 0 ? "the first block" : "own block of the queries that choose"),
    };
    // What was picked here since is newer than what the app drew this for.
    const older = this.waiting && data.serial === this.serial && this.waiting[0] < data.n && !same(this.waiting, data.picked);
    if (!older) {
      this.picked = data.picked;
      this.waiting = null;
      this.detail.open(data.detail);
      this.curve.open(data.curve);
      this.words(data.detail);
      if (this.serial !== null && data.serial !== this.serial) this.send(this.picked);
    }
    this.serial = data.serial;
    this.top = 0;
    for (const share of this.data.share) if (share > this.top) this.top = share;
    this.legend();
    this.draw(true);
    this.root.dataset.buildMs = (performance.now() - began).toFixed(1);
  }

  // A square root lifts the many small shares that a sink would leave dark.
  colour(b) {
    return Math.sqrt(this.data.share[b] / (this.top || 1));
  }

  draw(force) {
    const wide = this.root.clientWidth;
    if (!this.data || !wide) return;
    if (force !== true && wide === this.wide && this.root.dataset.drawn === getComputedStyle(this.root).backgroundColor) return;
    this.wide = wide;
    this.ink = inkOf(this.root);
    this.root.dataset.drawn = this.ink.paper;
    const beside = wide >= 720, most = beside ? wide * 0.62 - 98 : wide - 72;
    const side = Math.floor(Math.max(200, Math.min(most, Math.max(340, window.innerHeight * 0.56), 560)));
    this.map.draw(side);
    this.root.querySelector(".left").style.width = side + 64 + "px";
    const rest = beside ? wide - side - 64 - 36 : wide, near = Math.floor(Math.max(180, Math.min(rest, 330)));
    // Whole pixels a pair keep the antidiagonals even.
    this.detail.draw(near >= 2 * this.data.block ? near - (near % this.data.block) : near);
    this.curve.draw(Math.floor(Math.max(220, Math.min(rest, 440))));
  }

  pick(cell, slow) {
    if (!cell || same(cell, this.picked)) return;
    this.picked = this.waiting = cell;
    this.map.mark();
    this.curve.link(null);
    clearTimeout(this.timer);
    // Keys that are held down ask for the last block alone.
    this.timer = setTimeout(() => this.send(cell), slow ? 160 : 0);
  }

  send(cell) {
    if (this.setState) this.setState("picked", cell);
  }

  words({ title, why, how }) {
    for (const [name, text] of [["head", title], ["why", why], ["how", how]]) this.root.querySelector("." + name).textContent = text;
  }

  legend() {
    const bar = this.root.querySelector(".bar"), { data } = this;
    bar.replaceChildren();
    const scale = element("span", "scale"), line = element("i", "ramp");
    line.style.background = `linear-gradient(90deg,${CIVIDIS.map((c) => `rgb(${c.join(" ")})`).join(",")})`;
    scale.append(element("span", "", "0"), line, element("span", "", percent(this.top)), element("span", "m", data.unit));
    bar.append(scale);
    for (const [name, text, title] of data.legend) {
      const chip = element("span", "chip");
      chip.title = title;
      chip.append(element("i", name), element("span", "", text));
      bar.append(chip);
    }
  }
}

export default function (component) {
  const { data, parentElement, setStateValue } = component;
  const root = parentElement.querySelector(".fx");
  if (!root.blocks) root.blocks = new Blocks(root);
  root.blocks.setState = setStateValue;
  root.blocks.update(data);
}
