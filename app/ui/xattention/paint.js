// A canvas on which scores are painted, and what each scorer makes of them. Comes after panels.js, in one module.

class Paint {
  constructor(root) {
    this.root = root;
    this.stage = root.querySelector(".easel");
    this.base = this.stage.querySelector(".base");
    this.over = this.stage.querySelector(".over");
    this.tip = root.querySelector(".tip");
    this.live = root.querySelector(".sr");
    this.panels = new Panels(root.querySelector(".panels"), this.tip);
    this.brush = 2;
    this.score = 1;
    this.serial = null;
    this.cursor = null;
    this.listen();
    new ResizeObserver(() => this.draw()).observe(root);
    onTheme(root, () => this.draw());
  }

  update(data) {
    // Strokes made since the app drew this are newer; what it answers is of the last one it saw.
    if (data.serial !== this.serial || !this.cells) {
      this.cells = unpack(data.cells, Int8Array);
      this.serial = data.serial;
    }
    this.data = data;
    this.panels.update(data);
    this.draw();
  }

  draw() {
    const wide = this.root.clientWidth;
    if (!this.data || !wide) return;
    this.ink = inkOf(this.root);
    const beside = wide >= 700, side = Math.floor(Math.max(220, Math.min(beside ? wide * 0.42 : wide - 40, 430)));
    this.side = side;
    sized(this.over, side + 34, side + 30);
    this.picture();
    this.panels.draw(beside ? wide - side - 70 : wide, this.ink);
    this.tools();
  }

  picture() {
    const { side: n, block } = this.data, { side, ink } = this, cell = side / n, ctx = sized(this.base, side + 34, side + 30);
    const high = this.data.most, dark = { plus: ink.kept, minus: ink.lost };
    for (let i = 0; i < n; i++) {
      for (let j = 0; j <= i; j++) {
        const value = this.cells[i * n + j] / high;
        ctx.globalAlpha = 0.08 + 0.92 * Math.abs(value);
        ctx.fillStyle = value > 0 ? dark.plus : value < 0 ? dark.minus : ink.text;
        ctx.fillRect(30 + j * cell, 2 + i * cell, cell - (cell > 5 ? 0.6 : 0), cell - (cell > 5 ? 0.6 : 0));
      }
    }
    ctx.globalAlpha = 0.4;
    ctx.strokeStyle = ink.text;
    ctx.lineWidth = 0.7;
    for (let at = 0; at <= n; at += block) {
      ctx.beginPath();
      ctx.moveTo(30 + at * cell, 2 + Math.max(0, at - block) * cell);
      ctx.lineTo(30 + at * cell, 2 + side);
      ctx.moveTo(30, 2 + at * cell);
      ctx.lineTo(30 + Math.min(n, at + block) * cell, 2 + at * cell);
      ctx.stroke();
    }
    ctx.globalAlpha = 1;
    axisText(ctx, ink, "keys", 30 + side / 2, side + 17);
    axisText(ctx, ink, "queries", 9, side / 2, { turn: true });
  }

  tools() {
    for (const button of this.root.querySelectorAll(".tools button")) {
      const { brush, score } = button.dataset;
      const on = brush ? Number(brush) === this.brush : score ? Number(score) === this.score : false;
      button.setAttribute("aria-pressed", String(on));
    }
  }

  // ---- painting ----------------------------------------------------------------------------------------------------

  cellAt(event) {
    const box = this.base.getBoundingClientRect(), cell = this.side / this.data.side;
    const j = Math.floor((event.clientX - box.left - 30) / cell), i = Math.floor((event.clientY - box.top - 2) / cell);
    return i >= 0 && j >= 0 && i < this.data.side && j < this.data.side ? [i, j] : null;
  }

  dab([i, j]) {
    const { side: n } = this.data, from = Math.floor((this.brush - 1) / 2);
    for (let a = i - from; a < i - from + this.brush; a++) {
      for (let b = j - from; b < j - from + this.brush; b++) {
        if (a >= 0 && a < n && b >= 0 && b <= a) this.cells[a * n + b] = this.score * this.data.strength;
      }
    }
  }

  // A fast pointer skips cells: the line between two of its places is painted.
  stroke(from, to) {
    const steps = Math.max(1, Math.abs(to[0] - from[0]), Math.abs(to[1] - from[1]));
    for (let s = 0; s <= steps; s++) this.dab([0, 1].map((k) => Math.round(from[k] + ((to[k] - from[k]) * s) / steps)));
    this.picture();
  }

  send() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      const bytes = new Uint8Array(this.cells.buffer, this.cells.byteOffset, this.cells.length);
      let text = "";
      for (const byte of bytes) text += String.fromCharCode(byte);
      if (this.setState) this.setState("painted", btoa(text));
    }, 120);
  }

  mark() {
    const ctx = this.over.getContext("2d"), cell = this.side / this.data.side, from = Math.floor((this.brush - 1) / 2);
    ctx.clearRect(0, 0, this.over.width, this.over.height);
    if (!this.cursor) return;
    const [i, j] = this.cursor;
    ring(ctx, 30 + (j - from) * cell, 2 + (i - from) * cell, this.brush * cell, this.brush * cell, this.ink, 1.2);
  }

  listen() {
    const { base, stage } = this;
    base.addEventListener("pointerdown", (event) => {
      const cell = this.cellAt(event);
      if (event.button || !cell) return;
      base.setPointerCapture(event.pointerId);
      this.last = cell;
      this.stroke(cell, cell);
    });
    base.addEventListener("pointermove", (event) => {
      this.cursor = this.cellAt(event);
      this.mark();
      if (!this.last || !this.cursor) return;
      this.stroke(this.last, this.cursor);
      this.last = this.cursor;
    });
    const end = () => {
      if (this.last) this.send();
      this.last = null;
    };
    base.addEventListener("pointerup", end);
    base.addEventListener("pointercancel", end);
    base.addEventListener("pointerleave", () => {
      this.cursor = null;
      this.mark();
    });
    stage.addEventListener("keydown", (event) => this.key(event));
    for (const button of this.root.querySelectorAll(".tools button")) {
      button.addEventListener("click", () => {
        if (button.dataset.brush) this.brush = Number(button.dataset.brush);
        else if (button.dataset.score) this.score = Number(button.dataset.score);
        else {
          this.cells.fill(0);
          this.picture();
          this.send();
        }
        this.tools();
      });
    }
  }

  key(event) {
    const arrows = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }, { side: n } = this.data;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (arrows[event.key]) {
      const now = this.cursor || [n - 1, 0], [di, dj] = arrows[event.key];
      this.cursor = [Math.max(0, Math.min(n - 1, now[0] + di)), Math.max(0, Math.min(n - 1, now[1] + dj))];
      this.live.textContent = `query ${this.cursor[0] + 1}, key ${this.cursor[1] + 1}, score ${this.cells[this.cursor[0] * n + this.cursor[1]]}`;
      this.mark();
    } else if ((event.key === " " || event.key === "Enter") && this.cursor) {
      this.stroke(this.cursor, this.cursor);
      this.send();
    } else return;
    event.preventDefault();
  }
}

export default function (component) {
  const { data, parentElement, setStateValue } = component;
  const root = parentElement.querySelector(".fp");
  if (!root.paint) root.paint = new Paint(root);
  root.paint.setState = setStateValue;
  root.paint.update(data);
}
