// The map of blocks: point to read, click or arrow keys to pick. Comes after base.js.

class BlockMap {
  constructor(owner, stage) {
    this.owner = owner;
    this.stage = stage;
    this.base = stage.querySelector(".base");
    this.over = stage.querySelector(".over");
    this.cursor = null;
    this.base.addEventListener("pointermove", (event) => this.point(this.cellAt(event), event.clientX, event.clientY));
    this.base.addEventListener("pointerleave", () => this.point(null));
    this.base.addEventListener("click", (event) => this.owner.pick(this.cellAt(event), false));
    stage.addEventListener("keydown", (event) => this.key(event));
  }

  draw(side) {
    const { data, ink } = this.owner, { n } = data, left = 58, top = 4;
    const cell = side / n;
    this.place = { left, top, side, cell };
    const ctx = sized(this.base, left + side + 6, top + side + 42);
    sized(this.over, left + side + 6, top + side + 42);
    paintBlocks(ctx, { n, left, top, cell, value: (b) => this.owner.colour(b), marks: data.marks }, ink);
    const every = Math.max(1, Math.ceil(26 / cell)), unit = data.block;
    for (let b = 0; b < n; b += every) {
      axisText(ctx, ink, number(b * unit + 1), left - 6, top + (b + 0.5) * cell, { align: "right" });
      if (b % (every * 2) === 0) axisText(ctx, ink, number(b * unit + 1), left + (b + 0.5) * cell, top + side + 12);
    }
    axisText(ctx, ink, "keys: first token of the block", left + side / 2, top + side + 31);
    axisText(ctx, ink, "queries", 7, top + side / 2, { turn: true });
    this.mark();
  }

  mark() {
    const { ink, picked } = this.owner, { left, top, cell } = this.place, ctx = this.over.getContext("2d");
    ctx.clearRect(0, 0, this.over.width, this.over.height);
    const x = left + picked[1] * cell, y = top + picked[0] * cell;
    ctx.globalAlpha = 0.5;
    ctx.fillStyle = ink.text;
    ctx.fillRect(left, y - 1, (picked[0] + 1) * cell, 1);
    ctx.fillRect(left, y + cell, (picked[0] + 1) * cell, 1);
    ctx.globalAlpha = 1;
    ring(ctx, x - 1, y - 1, cell + 2, cell + 2, ink, 2.5);
    const hot = this.cursor || this.linked;
    if (hot && !same(hot, picked)) {
      ring(ctx, left + hot[1] * cell, top + hot[0] * cell, cell, cell, ink, 1.2);
    }
    this.base.style.cursor = this.cursor ? "pointer" : "default";
  }

  cellAt(event) {
    const box = this.base.getBoundingClientRect(), { left, top, cell } = this.place;
    const j = Math.floor((event.clientX - box.left - left) / cell), i = Math.floor((event.clientY - box.top - top) / cell);
    return i >= 0 && j >= 0 && i < this.owner.data.n && j <= i ? [i, j] : null;
  }

  // A block that the curve points at.
  link(cell) {
    this.linked = cell;
    this.mark();
  }

  point(cell, x, y) {
    this.cursor = cell;
    this.mark();
    this.owner.curve.link(cell && cell[0] === this.owner.picked[0] ? cell[1] : null);
    if (cell) showTip(this.owner.tip, this.rows(cell), x, y);
    else hideTip(this.owner.tip);
  }

  rows([i, j]) {
    const { data } = this.owner, at = i * data.n + j, kept = data.marks[at] & MARK.KEPT, share = data.share[at];
    const span = (b) => `tokens ${number(b * data.block + 1)} to ${number(Math.min(data.count, (b + 1) * data.block))}`;
    const found = [
      [["m", "queries: "], ["b", span(i)], ["m", ` “${short(data.starts[i], 26)}”`]],
      [["m", "keys: "], ["b", span(j)], ["m", ` “${short(data.starts[j], 26)}”`]],
    ];
    if (Number.isNaN(share)) found.push([["", "its own block: nothing was read to decide"]]);
    else found.push([["m", "sampled attention: "], ["b", percent(share)], ["m", ` of its row, number ${data.rank[at]}`]]);
    found.push([["m", "true attention: "], ["b", percent(data.real[at])], ["m", " of these queries'"]]);
    const why = data.marks[at] & MARK.OWN ? "always kept: its own block" : data.marks[at] & MARK.SINK ? "always kept: " + data.forcedText(j) : kept ? "kept" : "dropped";
    found.push([["b", why]]);
    return found;
  }

  key(event) {
    const arrows = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (event.ctrlKey || event.metaKey || event.altKey || !arrows[event.key]) return;
    event.preventDefault();
    const { data, picked } = this.owner, [di, dj] = arrows[event.key];
    const i = Math.max(0, Math.min(data.n - 1, picked[0] + di)), j = Math.max(0, Math.min(i, picked[1] + dj));
    this.owner.pick([i, j], true);
    this.owner.live.textContent = this.rows([i, j]).map((row) => row.map((part) => part[1]).join("")).join(". ");
  }
}
