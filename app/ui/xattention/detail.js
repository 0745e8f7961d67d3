// The picked block from near: every true score of it, the sampled ones bright, in their tiles. Comes after base.js.

class BlockDetail {
  constructor(owner, stage) {
    this.owner = owner;
    this.base = stage.querySelector(".base");
    this.over = stage.querySelector(".over");
    this.base.addEventListener("pointermove", (event) => this.point(event));
    this.base.addEventListener("pointerleave", () => this.point(null));
  }

  open(detail) {
    this.detail = { ...detail, cells: unpack(detail.cells, Uint8Array), tiles: unpack(detail.tiles, Float32Array) };
  }

  draw(side) {
    const detail = this.detail, { data, ink } = this.owner;
    this.side = side;
    const ctx = sized(this.base, side + 2, side + 2);
    sized(this.over, side + 2, side + 2);
    const rows = detail.rows, columns = detail.columns, unit = side / data.block, image = new ImageData(columns, rows);
    const order = data.order;
    for (let i = 0; i < rows; i++) {
      for (let j = 0; j < columns; j++) {
        const at = i * columns + j, hidden = detail.k0 + j > detail.q0 + i;
        const color = cividis(detail.cells[at] / 255);
        image.data.set([...color, hidden ? (this.sampled(i, j, order) ? 150 : 0) : this.sampled(i, j, order) ? 255 : 92], 4 * at);
      }
    }
    const small = document.createElement("canvas");
    small.width = columns;
    small.height = rows;
    small.getContext("2d").putImageData(image, 0, 0);
    ctx.imageSmoothingEnabled = false;
    ctx.drawImage(small, 1, 1, columns * unit, rows * unit);
    ctx.globalAlpha = 0.35;
    ctx.strokeStyle = ink.text;
    ctx.lineWidth = 0.6;
    for (let at = 0; order && at <= data.block; at += data.stride) {
      ctx.beginPath();
      ctx.moveTo(1 + at * unit, 1);
      ctx.lineTo(1 + at * unit, side + 1);
      ctx.moveTo(1, 1 + at * unit);
      ctx.lineTo(side + 1, 1 + at * unit);
      ctx.stroke();
    }
    ctx.globalAlpha = 0.6;
    ctx.lineWidth = 1.2;
    ctx.strokeRect(1, 1, side, side);
    ctx.globalAlpha = 1;
  }

  // Whether the pair of the block's query i and key j is read.
  sampled(i, j, order) {
    return !order || i % this.owner.data.stride === order[j % this.owner.data.stride];
  }

  point(event) {
    const ctx = this.over.getContext("2d"), { data, ink, tip } = this.owner, detail = this.detail;
    ctx.clearRect(0, 0, this.over.width, this.over.height);
    if (!event) return hideTip(tip);
    const box = this.base.getBoundingClientRect(), unit = this.side / data.block;
    const j = Math.floor((event.clientX - box.left - 1) / unit), i = Math.floor((event.clientY - box.top - 1) / unit);
    if (i < 0 || j < 0 || i >= detail.rows || j >= detail.columns) return hideTip(tip);
    const S = data.stride, r = Math.floor(i / S), c = Math.floor(j / S), across = data.block / S;
    if (data.order) ring(ctx, 1 + c * S * unit, 1 + r * S * unit, S * unit, S * unit, ink, 1.5);
    const value = detail.low + (detail.cells[i * detail.columns + j] / 255) * (detail.high - detail.low);
    const read = this.sampled(i, j, data.order);
    const rows = [
      [["m", "query "], ["b", `“${short(detail.queries[i], 20)}”`], ["m", ` token ${number(detail.q0 + i + 1)}`]],
      [["m", "key "], ["b", `“${short(detail.keys[j], 20)}”`], ["m", ` token ${number(detail.k0 + j + 1)}`]],
      [["m", "score "], ["b", value.toFixed(2)], ["", data.order ? (read ? ", read" : ", not read") : ""]],
    ];
    if (detail.k0 + j > detail.q0 + i) rows.push([["", read && data.order ? "The key comes later: no pair, though it is read." : "The key comes later: no pair."]]);
    if (data.order) rows.push([["m", "its tile: "], ["b", percent(detail.tiles[r * across + c])], ["m", " of its row of tiles"]]);
    return showTip(tip, rows, event.clientX, event.clientY);
  }
}
