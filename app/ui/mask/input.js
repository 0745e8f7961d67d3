// What the pointer and the keys do to the mask canvas.

class MaskInput extends Say {
  // The pair under the pointer, or null.
  pairAt(event) {
    const box = this.base.getBoundingClientRect(), { left, top, side } = this.place;
    const x = event.clientX - box.left - left, y = event.clientY - box.top - top;
    if (x < 0 || y < 0 || x >= side || y >= side) return null;
    const n = this.data.count, to = (at) => Math.min(n - 1, Math.floor(at));
    return [to(this.view.i + (y / side) * this.view.span), to(this.view.j + (x / side) * this.view.span)];
  }

  point(cell, x, y) {
    if (!cell) {
      this.cursor = null;
      this.hideTip();
    } else {
      if (!this.cursor || !same(cell, this.cursor)) {
        this.cursor = cell;
        this.fillTip(cell);
      }
      this.placeTip(x, y);
    }
    this.mark();
    if (!this.pin) this.sentence(cell);
  }

  listen() {
    const { base, stage, map } = this;
    base.addEventListener("pointermove", (event) => {
      if (this.drag) this.dragTo(event);
      else this.point(this.pairAt(event), event.clientX, event.clientY);
    });
    base.addEventListener("pointerleave", () => !this.drag && this.point(null));
    base.addEventListener("pointerdown", (event) => {
      if (event.button || !this.pairAt(event)) return;
      base.setPointerCapture(event.pointerId);
      this.drag = { x: event.clientX, y: event.clientY, view: this.view, moved: false };
    });
    base.addEventListener("pointerup", (event) => {
      const drag = this.drag;
      this.drag = null;
      base.classList.remove("drag");
      if (!drag || drag.moved) return;
      const cell = this.pairAt(event);
      if (cell) this.setPin(this.pin && same(cell, this.pin) ? null : cell);
    });
    base.addEventListener("pointercancel", () => {
      this.drag = null;
      base.classList.remove("drag");
    });
    stage.addEventListener("wheel", (event) => {
      const { side, left, top } = this.place, box = base.getBoundingClientRect();
      const cell = this.pairAt(event);
      // Where there is nothing left to zoom, the page scrolls as it would anywhere else.
      if (!cell || (event.deltaY > 0 && this.view.span >= this.data.count)) return;
      event.preventDefault();
      this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.0045), (event.clientY - box.top - top) / side, (event.clientX - box.left - left) / side);
    }, { passive: false });
    stage.addEventListener("keydown", (event) => this.key(event));
    stage.addEventListener("blur", () => this.point(null));
    for (const button of this.root.querySelectorAll(".tools button")) {
      button.addEventListener("click", () => this.tool(button.dataset.does));
    }
    const jump = (event) => {
      if (!(event.buttons & 1)) return;
      const box = map.getBoundingClientRect(), n = this.data.count, { span } = this.view;
      this.setView({ i: ((event.clientY - box.top) / MAP) * n - span / 2, j: ((event.clientX - box.left) / MAP) * n - span / 2, span });
    };
    map.addEventListener("pointerdown", (event) => {
      map.setPointerCapture(event.pointerId);
      jump(event);
    });
    map.addEventListener("pointermove", jump);
  }

  dragTo(event) {
    const drag = this.drag, x = event.clientX - drag.x, y = event.clientY - drag.y;
    if (!drag.moved && Math.hypot(x, y) < 4) return;
    drag.moved = true;
    this.base.classList.add("drag");
    this.hideTip();
    const unit = drag.view.span / this.place.side;
    this.setView({ i: drag.view.i - y * unit, j: drag.view.j - x * unit, span: drag.view.span });
  }

  tool(does) {
    if (does === "in") this.zoomAround(0.6);
    else if (does === "out") this.zoomAround(1 / 0.6);
    else if (does === "all") this.setView({ i: 0, j: 0, span: this.data.count });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const arrows = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const n = this.data.count, now = this.pin || this.cursor;
    if (arrows[event.key]) {
      const [di, dj] = arrows[event.key];
      if (event.shiftKey) this.setView({ i: this.view.i + (di * this.view.span) / 5, j: this.view.j + (dj * this.view.span) / 5, span: this.view.span });
      else {
        const from = now || [Math.floor(this.view.i + this.view.span / 2), Math.floor(this.view.j + this.view.span / 4)];
        const step = now ? this.cells.step : 0;
        const hold = (at) => Math.max(0, Math.min(n - 1, at));
        this.goTo([hold(from[0] + di * step), hold(from[1] + dj * step)]);
      }
    } else if (event.key === "+" || event.key === "=") this.zoomAround(0.6);
    else if (event.key === "-" || event.key === "_") this.zoomAround(1 / 0.6);
    else if (event.key === "0" || event.key === "Home") this.tool("all");
    else if ((event.key === "Enter" || event.key === " ") && now) this.setPin(this.pin ? null : now);
    else if (event.key === "Escape") {
      this.hideTip();
      if (!this.pin) return;
      this.setPin(null);
    } else return;
    event.preventDefault();
  }

  // Move the crosshair by keyboard; the view follows.
  goTo(cell) {
    const before = this.view;
    this.reveal(cell);
    const moved = this.view;
    this.view = before;
    this.setView(moved);
    this.cursor = cell;
    this.fast = true;
    if (this.pin) this.setPin(cell);
    else {
      this.mark();
      this.sentence(cell);
      this.speak(cell);
    }
    this.fillTip(cell);
    const box = this.base.getBoundingClientRect(), { left, top, side } = this.place, scale = side / this.view.span;
    this.placeTip(box.left + left + (cell[1] + 0.5 - this.view.j) * scale, box.top + top + (cell[0] + 0.5 - this.view.i) * scale);
  }

  speak(cell) {
    this.fillTip(cell);
    this.live.textContent = Array.from(this.tip.children, (row) => row.textContent).join(". ");
  }
}

function same(a, b) {
  return a[0] === b[0] && a[1] === b[1];
}
