// The mask canvas: data, view and drawing. Comes after the other files of this folder, in one module with them.

const GUTTER = { left: 92, top: 4, bottom: 78 };
const LEAST_SPAN = 6;
const MAP = 116;

class MaskCanvas extends MaskInput {
  constructor(root) {
    super();
    this.root = root;
    for (const name of ["say", "stage", "base", "over", "side", "tip", "bar", "note", "map", "sr"]) this[name] = root.querySelector("." + name);
    this.live = this.sr;
    this.painter = new Painter(this.base);
    this.pin = this.cursor = this.view = this.ink = null;
    this.pinSerial = this.viewSerial = null;
    this.listen();
    new ResizeObserver(() => this.fit()).observe(root);
    // The theme reaches the page as CSS variables alone: a colour that changes ends this transition.
    root.addEventListener("transitionend", (event) => {
      if (event.target === root && event.propertyName === "background-color") this.recolour();
    });
  }

  // ---- data --------------------------------------------------------------------------------------------------------

  update(data) {
    const began = performance.now();
    const before = this.data;
    this.data = data;
    const text = JSON.stringify([data.mask, data.other]);
    if (text !== this.text) {
      this.text = text;
      this.model = { mask: openMask(data.mask), other: data.other ? openMask(data.other) : null };
    }
    this.model.tokens = data.tokens;
    this.model.lost = data.lost ? this.openLost(data.lost) : null;
    if (!before || before.count !== data.count) {
      this.view = { i: 0, j: 0, span: data.count };
      this.cursor = null;
      if (before) this.send("view", null);
      if (this.pin) this.setPin(null);
    }
    if (data.view && data.view[3] !== this.viewSerial) {
      this.viewSerial = data.view[3];
      this.view = this.inside({ i: data.view[0], j: data.view[1], span: data.view[2] });
      this.tellView();
    }
    if (data.select && data.select[2] !== this.pinSerial) {
      if (data.select[0] >= 0) bringIntoView(this.root, this.pinSerial === null);
      this.pinSerial = data.select[2];
      this.pin = data.select[0] < 0 || data.select[0] >= data.count ? null : [data.select[0], data.select[1]];
      if (this.pin) this.reveal(this.pin);
      this.send("pinned", this.pin);
    }
    this.fit(true);
    this.root.dataset.buildMs = (performance.now() - began).toFixed(1);
  }

  openLost(packed) {
    const lost = {
      rows: unpack(packed.rows, Int32Array), start: unpack(packed.start, Int32Array),
      keys: unpack(packed.keys, Uint16Array), mass: unpack(packed.mass, Uint16Array),
    };
    lost.at = new Map(Array.from(lost.rows, (row, r) => [row, r]));
    return lost;
  }

  // Lost pairs of a query: how many, and their mass; null where its row was not looked at.
  lostOf(i) {
    const lost = this.model.lost, r = lost ? lost.at.get(i) : undefined;
    if (r === undefined) return null;
    let mass = 0;
    for (let m = lost.start[r]; m < lost.start[r + 1]; m++) mass += lost.mass[m];
    return { size: lost.start[r + 1] - lost.start[r], mass: mass / 65535, from: lost.start[r], to: lost.start[r + 1] };
  }

  lostMass(i, j) {
    const found = this.lostOf(i), lost = this.model.lost;
    if (found) for (let m = found.from; m < found.to; m++) if (lost.keys[m] === j) return Math.max(lost.mass[m], 1) / 65535;
    return 0;
  }

  // ---- drawing -----------------------------------------------------------------------------------------------------

  fit(force) {
    if (!this.data) return;
    const wide = this.root.clientWidth, beside = wide >= 640 ? 230 : 0;
    if (!wide) return;
    const side = Math.floor(Math.max(220, Math.min(wide - beside - GUTTER.left - 8, Math.max(340, window.innerHeight * 0.64), 760)));
    const ratio = window.devicePixelRatio || 1;
    if (!force && this.place && this.place.side === side && this.place.ratio === ratio) return;
    this.place = { ...GUTTER, side, ratio };
    this.recolour();
  }

  recolour() {
    if (!this.place) return;
    this.ink = readInk(this.root);
    this.mapped = null;
    this.paint();
    this.legend();
  }

  paint() {
    const began = performance.now();
    this.cells = this.painter.draw(this.model, this.view, this.place, this.ink);
    const { base, over, stage } = this;
    if (over.width !== base.width || over.height !== base.height) {
      over.width = base.width;
      over.height = base.height;
      over.style.width = base.style.width;
      over.style.height = base.style.height;
      stage.style.width = base.style.width;
    }
    this.root.dataset.paints = String(Number(this.root.dataset.paints || 0) + 1);
    this.root.dataset.paintMs = (performance.now() - began).toFixed(1);
    this.minimap();
    this.mark();
    this.pooled();
    this.sentence(this.pin || this.cursor);
  }

  repaint() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      this.paint();
    });
  }

  minimap() {
    const { map, ink, data } = this, ctx = map.getContext("2d"), ratio = this.place.ratio, size = Math.round(MAP * ratio);
    if (!this.mapped) {
      // Lost pairs of a part of the rows would look as if the others had none.
      const all = this.model.lost && this.model.lost.rows.length >= data.count ? this.model.lost : null;
      const cells = cellsOf(this.model.mask, this.model.other, all, { i: 0, j: 0, span: data.count }, MAP);
      this.mapped = document.createElement("canvas");
      this.mapped.width = cells.columns;
      this.mapped.height = cells.rows;
      const image = new ImageData(cells.columns, cells.rows);
      paintCells(cells, ink, image.data);
      this.mapped.getContext("2d").putImageData(image, 0, 0);
      this.mapped.span = (Math.max(cells.columns, cells.rows) * cells.step) / data.count;
      map.width = map.height = size;
      map.style.width = map.style.height = MAP + "px";
    }
    ctx.clearRect(0, 0, size, size);
    ctx.globalAlpha = 0.75;
    ctx.drawImage(this.mapped, 0, 0, size * this.mapped.span, size * this.mapped.span);
    ctx.globalAlpha = 1;
    const unit = size / data.count, { i, j, span } = this.view;
    ctx.strokeStyle = css(ink.text);
    ctx.lineWidth = 1.5 * ratio;
    if (span < data.count) ctx.strokeRect(j * unit, i * unit, Math.max(3, span * unit), Math.max(3, span * unit));
  }

  // What follows the pointer lies on a canvas of its own: moving over the mask redraws none of it.
  mark() {
    const { over, place, view, ink } = this, ctx = over.getContext("2d"), { left, top, side, ratio } = place;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.clearRect(0, 0, over.width, over.height);
    const scale = side / view.span;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, side, side);
    ctx.clip();
    const box = ([i, j]) => [left + (j - view.j) * scale, top + (i - view.i) * scale, Math.max(1, scale)];
    const cross = (cell, alpha, width) => {
      const [x, y, size] = box(cell), wide = Math.max(size, 1);
      ctx.fillStyle = css(ink.text, alpha);
      ctx.fillRect(left, y, side, Math.max(width, scale >= 4 ? wide : width));
      ctx.fillRect(x, top, Math.max(width, scale >= 4 ? wide : width), side);
    };
    if (this.cursor && !(this.pin && same(this.pin, this.cursor))) cross(this.cursor, scale >= 4 ? 0.1 : 0.28, 1);
    if (this.pin) {
      cross(this.pin, scale >= 4 ? 0.16 : 0.5, 1);
      this.marksOfRow(ctx, this.pin[0], box, scale);
    }
    for (const [cell, color, line] of [[this.cursor, css(ink.text), 1.5], [this.pin, css(ink.text), 2.5]]) {
      if (!cell) continue;
      const [x, y, size] = box(cell), room = Math.max(0, 9 - size) / 2;
      ctx.lineWidth = line + 2;
      ctx.strokeStyle = css(ink.paper);
      ctx.strokeRect(x - room, y - room, size + 2 * room, size + 2 * room);
      ctx.lineWidth = line;
      ctx.strokeStyle = color;
      ctx.strokeRect(x - room, y - room, size + 2 * room, size + 2 * room);
    }
    ctx.restore();
  }

  // Lost keys of the held query stand out even where a cell is smaller than a pixel.
  marksOfRow(ctx, i, box, scale) {
    const found = this.lostOf(i);
    if (!found || scale >= 6) return;
    ctx.fillStyle = css(this.ink.lost);
    for (let m = found.from; m < found.to; m++) {
      const [x, y, size] = box([i, this.model.lost.keys[m]]), wide = Math.max(2, size);
      ctx.fillRect(x - (wide - size) / 2, y - 3, wide, 6 + size);
    }
  }

  // ---- state -------------------------------------------------------------------------------------------------------

  send(name, value) {
    if (this.setState) this.setState(name, value);
  }

  setPin(cell) {
    this.pin = cell;
    this.mark();
    this.sentence(cell || this.cursor);
    if (cell) this.speak(cell);
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.send("pinned", cell), this.fast ? 150 : 0);
    this.fast = false;
  }

  inside({ i, j, span }) {
    const n = this.data.count;
    span = Math.max(Math.min(LEAST_SPAN, n), Math.min(n, span));
    const hold = (at) => Math.max(0, Math.min(n - span, at));
    return { i: hold(i), j: hold(j), span };
  }

  setView(view) {
    const next = this.inside(view), now = this.view;
    if (next.i === now.i && next.j === now.j && next.span === now.span) return;
    this.view = next;
    this.hideTip();
    this.repaint();
    clearTimeout(this.telling);
    this.telling = setTimeout(() => this.tellView(), 500);
  }

  tellView() {
    const { i, j, span } = this.view;
    this.send("view", span >= this.data.count ? null : [Math.round(i), Math.round(j), Math.round(span)]);
  }

  // Zoom so that the pair at (y, x), as shares of the plot, stays where it is.
  zoom(factor, y = 0.5, x = 0.5) {
    const { i, j, span } = this.view;
    const next = Math.max(Math.min(LEAST_SPAN, this.data.count), Math.min(this.data.count, span * factor));
    this.setView({ i: i + (span - next) * y, j: j + (span - next) * x, span: next });
  }

  zoomAround(factor) {
    const cell = this.cursor || this.pin, { i, j, span } = this.view;
    const at = cell && cell[0] >= i && cell[0] < i + span && cell[1] >= j && cell[1] < j + span;
    this.zoom(factor, at ? (cell[0] + 0.5 - i) / span : 0.5, at ? (cell[1] + 0.5 - j) / span : 0.5);
  }

  reveal([i, j]) {
    const view = { ...this.view };
    for (const [axis, at] of [["i", i], ["j", j]]) {
      if (at < view[axis] || at + 1 > view[axis] + view.span) view[axis] = at - view.span / 2;
    }
    this.view = this.inside(view);
  }
}

export default function (component) {
  const { data, parentElement, setStateValue } = component;
  const root = parentElement.querySelector(".fm");
  if (!root.mask) root.mask = new MaskCanvas(root);
  root.mask.setState = setStateValue;
  root.mask.update(data);
}
