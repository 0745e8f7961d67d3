// The cumulative cut of one row: its blocks by score, what they hold together, and the line where it ends.

class CutCurve {
  constructor(owner, stage) {
    this.owner = owner;
    this.base = stage.querySelector(".base");
    this.over = stage.querySelector(".over");
    this.base.addEventListener("pointermove", (event) => this.point(event));
    this.base.addEventListener("pointerleave", () => this.point(null));
    this.base.addEventListener("click", (event) => {
      const at = this.at(event);
      if (at !== null) this.owner.pick([this.owner.picked[0], this.curve.order[at]], false);
    });
  }

  open(curve) {
    this.curve = { ...curve, order: unpack(curve.order, Int16Array), reached: unpack(curve.reached, Float32Array) };
  }

  draw(width) {
    const high = 172, left = 44, top = 10, bottom = 38, curve = this.curve, { ink, data } = this.owner;
    const ctx = sized(this.base, width, high);
    sized(this.over, width, high);
    const of = curve.order.length, wide = (width - left - 8) / of, tall = high - top - bottom;
    this.place = { left, top, wide, tall };
    const y = (share) => top + (1 - share) * tall;
    for (const share of [0, 0.5, 1]) {
      ctx.globalAlpha = 0.18;
      ctx.fillStyle = ink.text;
      ctx.fillRect(left, y(share), of * wide, 1);
      ctx.globalAlpha = 1;
      axisText(ctx, ink, `${100 * share} %`, left - 6, y(share), { align: "right" });
    }
    const gap = wide > 4 ? 1 : 0;
    for (let at = 0; at < of; at++) {
      const before = at ? curve.reached[at - 1] : 0, mark = this.mark(at);
      ctx.globalAlpha = mark.kept ? 0.3 : 0.22;
      ctx.fillStyle = mark.kept ? (mark.forced ? ink.own : ink.kept) : ink.dropped;
      ctx.fillRect(left + at * wide, y(before), wide - gap, y(0) - y(before));
      ctx.globalAlpha = 1;
      ctx.fillRect(left + at * wide, y(curve.reached[at]), wide - gap, Math.max(1.5, y(before) - y(curve.reached[at])));
    }
    if (data.threshold < 1) {
      ctx.strokeStyle = ink.lost;
      ctx.lineWidth = 1.5;
      ctx.setLineDash([5, 4]);
      ctx.beginPath();
      ctx.moveTo(left, y(data.threshold));
      ctx.lineTo(left + of * wide, y(data.threshold));
      ctx.stroke();
      ctx.setLineDash([]);
    }
    axisText(ctx, ink, curve.title, left + (of * wide) / 2, high - 10);
    this.link(null);
  }

  mark(at) {
    const column = this.curve.order[at];
    return { kept: at < this.curve.kept, forced: column === 0 || column === this.curve.voter, column };
  }

  at(event) {
    if (!this.place) return null;
    const box = this.base.getBoundingClientRect(), at = Math.floor((event.clientX - box.left - this.place.left) / this.place.wide);
    return at >= 0 && at < this.curve.order.length ? at : null;
  }

  // Rings the picked block's place, and that of a block of the same row that is pointed at.
  link(column) {
    const { ink, picked } = this.owner, ctx = this.over.getContext("2d");
    ctx.clearRect(0, 0, this.over.width, this.over.height);
    if (!this.place) return;
    const { left, top, wide, tall } = this.place;
    const box = (at, width) => {
      const before = at ? this.curve.reached[at - 1] : 0, y = top + (1 - this.curve.reached[at]) * tall;
      ring(ctx, left + at * wide, y - 2, Math.max(3, wide - 1), Math.max(4, (this.curve.reached[at] - before) * tall + 4), ink, width);
    };
    const own = this.curve.order.indexOf(picked[1]), hot = column === null ? -1 : this.curve.order.indexOf(column);
    if (hot >= 0 && hot !== own) box(hot, 1);
    if (own >= 0) box(own, 2);
  }

  point(event) {
    const at = event ? this.at(event) : null, { tip, map, picked } = this.owner;
    if (at === null) {
      this.link(null);
      map.link(null);
      return hideTip(tip);
    }
    const { column, kept, forced } = this.mark(at), before = at ? this.curve.reached[at - 1] : 0;
    this.link(column);
    map.link([picked[0], column]);
    this.base.style.cursor = "pointer";
    return showTip(tip, [
      [["b", `Number ${at + 1}`], ["m", `: key block ${column + 1}`]],
      [["m", "holds "], ["b", percent(this.curve.reached[at] - before)], ["m", `, together ${percent(this.curve.reached[at])}`]],
      [["b", kept ? (forced ? "always kept" : "kept") : "dropped"]],
    ], event.clientX, event.clientY);
  }
}
