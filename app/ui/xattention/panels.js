// Small maps of blocks side by side, on one scale. Comes after base.js.

class Panels {
  constructor(root, tip) {
    this.root = root;
    this.tip = tip;
  }

  update(data) {
    this.data = data;
    this.panels = data.panels.map((panel) => ({
      ...panel, share: unpack(panel.share, Float32Array), marks: unpack(panel.marks, Uint8Array),
      rank: panel.rank ? unpack(panel.rank, Int16Array) : null,
    }));
    this.real = unpack(data.real, Float32Array);
    const titles = data.panels.map((panel) => panel.title).join("|");
    if (titles !== this.titles) this.build();
    this.titles = titles;
  }

  build() {
    this.parts = this.panels.map((panel, p) => {
      const box = element("div", "panel"), note = element("div", "note"), canvas = element("canvas");
      box.append(element("div", "title", panel.title), canvas, note);
      canvas.addEventListener("pointermove", (event) => this.point(p, event));
      canvas.addEventListener("pointerleave", () => hideTip(this.tip));
      return { box, note, canvas };
    });
    this.root.replaceChildren(...this.parts.map((part) => part.box));
  }

  draw(wide, ink) {
    const { n } = this.data, across = Math.max(1, Math.min(this.panels.length, Math.floor((wide + 20) / 190), this.data.across || 3));
    const side = Math.floor(Math.max(120, Math.min(230, (wide - 20 * (across - 1)) / across)));
    this.cell = side / n;
    this.panels.forEach((panel, p) => {
      const { canvas, note } = this.parts[p], ctx = sized(canvas, side + 2, side + 2), top = Math.max(...panel.share);
      const value = (b) => Math.sqrt(panel.share[b] / (top || 1));
      paintBlocks(ctx, { n, left: 1, top: 1, cell: this.cell, value, marks: panel.marks }, ink);
      if (panel.rank && this.cell >= 15) this.ranks(ctx, panel, value);
      note.textContent = panel.note;
      note.title = panel.meaning || "";
    });
  }

  ranks(ctx, panel, value) {
    const { n } = this.data;
    ctx.font = "10.5px sans-serif";
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    for (let i = 0; i < n; i++) {
      for (let j = 0; j <= i; j++) {
        ctx.fillStyle = value(i * n + j) > 0.62 ? "#10151f" : "#ffffff";
        ctx.fillText(String(panel.rank[i * n + j]), 1 + (j + 0.5) * this.cell, 1.5 + (i + 0.5) * this.cell);
      }
    }
  }

  point(p, event) {
    const panel = this.panels[p], { n } = this.data, box = this.parts[p].canvas.getBoundingClientRect();
    const j = Math.floor((event.clientX - box.left - 1) / this.cell), i = Math.floor((event.clientY - box.top - 1) / this.cell);
    if (i < 0 || j < 0 || i >= n || j > i) return hideTip(this.tip);
    const at = i * n + j, rows = [[["b", `${panel.title}: `], ["", `query block ${i + 1}, key block ${j + 1}`]]];
    if (panel.rank) rows.push([["m", "sampled attention: "], ["b", percent(panel.share[at])], ["m", ` of its row, number ${panel.rank[at]}`]]);
    rows.push([["m", "true attention: "], ["b", percent(this.real[at])]]);
    rows.push([["b", panel.marks[at] & MARK.KEPT ? "kept" : "dropped"]]);
    return showTip(this.tip, rows, event.clientX, event.clientY);
  }
}
