// The points of a map: unpacked once, found by place, drawn on two canvases (points below, what is pointed at above).

const TAU = 2 * Math.PI;
const LABELS = 64;

class Points {
  // ---- data ------------------------------------------------------------------------------------------------------

  stamps = new Map();

  take(data) {
    const n = data.count;
    const raw = unpack(data.points, Uint16Array);
    const from = this.xy && this.xy.length === raw.length && this.seenAs === data.tokens ? this.xy : null;
    const to = Float32Array.from(raw, (v) => v / 65535);
    this.seenAs = data.tokens;
    this.n = n;
    this.sides = data.sides;
    this.centroids = data.centroids ? Float32Array.from(unpack(data.centroids, Uint16Array), (v) => v / 65535) : new Float32Array(0);
    this.middles = Float32Array.from(unpack(data.middles, Uint16Array), (v) => v / 65535);
    this.k = words(data.k, n);
    this.q = words(data.q, n);
    this.own = [unpack(data.key_group, Uint8Array), unpack(data.query_group, Uint8Array)];
    this.parts = data.parts ? unpack(data.parts, Uint8Array) : null;
    this.often = unpack(data.often, Uint16Array);
    this.most = this.often.reduce((a, b) => Math.max(a, b), 1);
    this.begin = unpack(data.begin, Int32Array);
    this.end = unpack(data.end, Int32Array);
    if (from && !matchMedia("(prefers-reduced-motion: reduce)").matches) this.glide(from, to);
    else this.place(to);
  }

  glide(from, to) {
    const began = performance.now();
    const step = (now) => {
      const t = Math.min(1, (now - began) / 600), s = t * t * (3 - 2 * t);
      if (this.target !== to) return;
      this.place(t < 1 ? to.map((v, i) => from[i] + s * (v - from[i])) : to, t < 1);
      this.draw();
      if (t < 1) requestAnimationFrame(step);
    };
    this.target = to;
    requestAnimationFrame(step);
  }

  place(xy, moving) {
    this.xy = xy;
    if (moving) return;
    this.target = xy;
    // A grid of cells finds what is under the pointer without looking at every point.
    const size = this.gridSize = Math.max(8, Math.min(96, Math.round(Math.sqrt(xy.length / 4))));
    const count = xy.length / 2, cells = new Int32Array(size * size + 1), cell = new Int32Array(count);
    for (let i = 0; i < count; i++) {
      cell[i] = Math.min(size - 1, Math.floor(xy[2 * i + 1] * size)) * size + Math.min(size - 1, Math.floor(xy[2 * i] * size));
      cells[cell[i] + 1]++;
    }
    for (let c = 0; c < size * size; c++) cells[c + 1] += cells[c];
    this.gridStart = cells.slice();
    this.gridItem = new Int32Array(count);
    for (let i = 0; i < count; i++) this.gridItem[cells[cell[i]]++] = i;
  }

  tokenOf(point) {
    return point % this.n;
  }

  sideOf(point) {
    return point < this.n ? 0 : 1;
  }

  shownSide(side) {
    return side < this.sides && this.show[side];
  }

  text(t) {
    const special = this.data.specials[t];
    return special !== undefined ? special : this.data.text.slice(this.begin[t], this.end[t]);
  }

  // ---- view ------------------------------------------------------------------------------------------------------

  side() {
    return Math.max(1, Math.min(this.width, this.height) - 56);
  }

  fit() {
    // The two axes of a map have no units of their own: each fills the stage.
    this.scaleX = Math.max(1, this.width - 72) * this.view.zoom;
    this.scaleY = Math.max(1, this.height - 56) * this.view.zoom;
  }

  screen(x, y) {
    return [this.width / 2 + (x - this.view.x) * this.scaleX, this.height / 2 - (y - this.view.y) * this.scaleY];
  }

  world(x, y) {
    return [this.view.x + (x - this.width / 2) / this.scaleX, this.view.y - (y - this.height / 2) / this.scaleY];
  }

  at(point) {
    return this.screen(this.xy[2 * point], this.xy[2 * point + 1]);
  }

  near(x, y, radius) {
    // Shown points within a radius on the screen, as [squared distance, point], nearest first.
    const [wx, wy] = this.world(x, y), rx = radius / this.scaleX, ry = radius / this.scaleY, size = this.gridSize, found = [];
    const cut = (v) => Math.max(0, Math.min(size - 1, Math.floor(v * size)));
    for (let r = cut(wy - ry); r <= cut(wy + ry); r++) {
      for (let c = cut(wx - rx); c <= cut(wx + rx); c++) {
        for (let k = this.gridStart[r * size + c]; k < this.gridStart[r * size + c + 1]; k++) {
          const point = this.gridItem[k];
          if (!this.shownSide(this.sideOf(point))) continue;
          const [px, py] = this.at(point), d = (px - x) ** 2 + (py - y) ** 2;
          if (d <= radius * radius) found.push([d, point]);
        }
      }
    }
    return found.sort((a, b) => a[0] - b[0]);
  }

  // ---- colour ----------------------------------------------------------------------------------------------------

  classOf(point) {
    const t = this.tokenOf(point);
    if (this.colour === "group") return this.own[this.sideOf(point)][t];
    if (this.colour === "part") return this.parts ? this.parts[t] : 255;
    const share = this.colour === "position" ? t / Math.max(1, this.n - 1) : Math.log(this.often[t]) / Math.log(Math.max(2, this.most));
    return Math.min(15, Math.floor(share * 16));
  }

  paint(kind) {
    if (kind === 255) return this.ink.faint;
    if (this.colour === "group" || this.colour === "part") return this.data.colours[kind % 16];
    return this.data.ramp[kind];
  }

  letterInk(g) {
    // A group's colour beside points in other colours would mean something that it does not.
    return this.colour === "group" ? this.data.colours[g % 16] : this.ink.fg;
  }

  inGroup(point, g) {
    const set = this.sideOf(point) ? this.q : this.k;
    return ((g < 32 ? set.low : set.high)[this.tokenOf(point)] >>> (g % 32)) & 1;
  }

  lit(point) {
    const focus = this.lens !== null ? this.lens : this.picked.token === null && this.picked.group !== null ? { group: this.picked.group } : null;
    if (!focus) return true;
    return focus.group !== undefined ? this.inGroup(point, focus.group) : this.classOf(point) === focus.kind;
  }

  // ---- drawing ---------------------------------------------------------------------------------------------------

  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.paintPoints();
      this.paintOver();
    });
  }

  drawOver() {
    if (this.waiting || this.over) return;
    this.over = true;
    requestAnimationFrame(() => {
      this.over = false;
      this.paintOver();
    });
  }

  size() {
    const box = this.stage.getBoundingClientRect(), dense = window.devicePixelRatio || 1;
    this.width = box.width;
    this.height = box.height;
    this.dense = dense;
    for (const canvas of [this.below, this.above]) {
      canvas.width = Math.round(box.width * dense);
      canvas.height = Math.round(box.height * dense);
      canvas.getContext("2d").setTransform(dense, 0, 0, dense, 0, 0);
    }
    const style = getComputedStyle(this.root);
    const fg = style.getPropertyValue("--fg").trim() || "#222", bg = style.getPropertyValue("--bg").trim() || "#fff";
    this.ink = { fg, bg, faint: "#8a90a0" };
    this.fit();
  }

  paintPoints() {
    const began = performance.now(), ctx = this.below.getContext("2d");
    ctx.clearRect(0, 0, this.width, this.height);
    if (!this.xy || !this.width) return;
    const size = this.dot = Math.max(2.1, Math.min(6, (this.n > 3000 ? 2.2 : 3.1) * Math.sqrt(this.view.zoom) ** 0.7));
    const batches = [new Map(), new Map()];
    for (let side = this.sides - 1; side >= 0; side--) {
      if (!this.show[side]) continue;
      for (let t = 0; t < this.n; t++) {
        const point = side * this.n + t, [x, y] = this.at(point);
        if (x < -8 || y < -8 || x > this.width + 8 || y > this.height + 8) continue;
        const lit = this.lit(point) ? 1 : 0, key = side * 512 + (lit ? this.classOf(point) : 256);
        if (!batches[lit].has(key)) batches[lit].set(key, []);
        batches[lit].get(key).push(x, y);
      }
    }
    // What is lit lies over what is not, dots over rings; each is one small picture, stamped: paths take ten times as long.
    batches.forEach((batch, lit) => {
      ctx.globalAlpha = lit ? 0.87 : 0.1;
      for (const key of [...batch.keys()].sort((p, q) => (q >> 9) - (p >> 9))) {
        const kind = key & 511, list = batch.get(key);
        const stamp = this.stamp(key >> 9, lit ? this.paint(kind) : this.ink.faint, size), half = stamp.width / 2 / this.dense;
        for (let i = 0; i < list.length; i += 2) ctx.drawImage(stamp, list[i] - half, list[i + 1] - half, 2 * half, 2 * half);
      }
    });
    ctx.globalAlpha = 1;
    this.paintCentroids(ctx);
    this.root.dataset.drawMs = (performance.now() - began).toFixed(1);
  }

  places() {
    // Where the letters stand: beside their groups' islands, away from the middle, and apart from each other.
    const found = [], [midX, midY] = this.screen(0.5, 0.5);
    for (let g = 0; g < this.middles.length / 2; g++) {
      if (!this.data.shares[g]) continue;
      const [x, y] = this.screen(this.middles[2 * g], this.middles[2 * g + 1]);
      const out = Math.hypot(x - midX, y - midY) || 1;
      found.push({ g, x: x + (18 * (x - midX)) / out, y: y + (18 * (y - midY)) / out, fromX: x, fromY: y });
    }
    for (let turn = 0; turn < 24; turn++) {
      for (let i = 0; i < found.length; i++) {
        for (let j = i + 1; j < found.length; j++) {
          const a = found[i], b = found[j], dx = b.x - a.x || 0.1 * (j - i), dy = b.y - a.y || 0.07, far = Math.hypot(dx, dy);
          if (far >= 24) continue;
          const push = (24 - far) / 2 / far;
          a.x -= dx * push;
          a.y -= dy * push;
          b.x += dx * push;
          b.y += dy * push;
        }
      }
    }
    return found;
  }

  stamp(side, colour, size) {
    const key = [side, colour, size.toFixed(2), this.dense].join();
    if (!this.stamps.has(key)) {
      if (this.stamps.size > 400) this.stamps.clear();
      const made = document.createElement("canvas"), r = side ? size + 0.7 : size, half = Math.ceil((r + 1.5) * this.dense);
      made.width = made.height = 2 * half;
      const ctx = made.getContext("2d");
      ctx.scale(this.dense, this.dense);
      ctx.arc(half / this.dense, half / this.dense, r, 0, TAU);
      ctx.fillStyle = ctx.strokeStyle = colour;
      ctx.lineWidth = 1.25;
      if (side) ctx.stroke();
      else ctx.fill();
      this.stamps.set(key, made);
    }
    return this.stamps.get(key);
  }

  paintCentroids(ctx) {
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    const asked = this.picked.token !== null ? groupsOf(this.q, this.picked.token) : [];
    if (this.show[2]) {
      ctx.font = "700 9px " + this.font;
      for (let g = 0; g < this.centroids.length / 2; g++) {
        const [x, y] = this.screen(this.centroids[2 * g], this.centroids[2 * g + 1]);
        ctx.beginPath();
        for (const [dx, dy] of [[0, -9], [9, 0], [0, 9], [-9, 0]]) ctx.lineTo(x + dx, y + dy);
        ctx.closePath();
        ctx.fillStyle = this.ink.bg;
        ctx.fill();
        ctx.lineWidth = 1.5;
        ctx.strokeStyle = this.letterInk(g);
        ctx.stroke();
        ctx.fillStyle = this.ink.fg;
        ctx.fillText(label(g), x, y + 0.5);
      }
    }
    this.letters = this.places();
    ctx.font = "700 12px " + this.font;
    for (const { g, x, y, fromX, fromY } of this.letters) {
      const on = this.picked.group === g || asked.includes(g), r = on ? 12 : 10;
      ctx.strokeStyle = this.letterInk(g);
      if (Math.hypot(x - fromX, y - fromY) > 5) {
        ctx.lineWidth = 1.25;
        ctx.beginPath();
        ctx.moveTo(fromX, fromY);
        ctx.lineTo(x, y);
        ctx.stroke();
      }
      ctx.beginPath();
      ctx.arc(x, y, r, 0, TAU);
      ctx.fillStyle = this.ink.bg;
      ctx.fill();
      ctx.lineWidth = on ? 3.5 : 2.25;
      ctx.stroke();
      ctx.fillStyle = this.ink.fg;
      ctx.fillText(label(g), x, y + 0.5);
    }
  }

  letterAt(x, y) {
    const found = (this.letters || []).find((letter) => (letter.x - x) ** 2 + (letter.y - y) ** 2 <= 144);
    return found ? found.g : null;
  }

  centroidAt(x, y) {
    for (let g = 0; this.show[2] && g < this.centroids.length / 2; g++) {
      const [cx, cy] = this.screen(this.centroids[2 * g], this.centroids[2 * g + 1]);
      if (Math.abs(cx - x) + Math.abs(cy - y) <= 10) return g;
    }
    return null;
  }

  paintOver() {
    const ctx = this.above.getContext("2d");
    ctx.clearRect(0, 0, this.width, this.height);
    if (!this.xy || !this.width) return;
    const held = this.picked.token;
    if (held !== null) this.paintHeld(ctx, held);
    const focus = this.hover !== null ? this.at(this.hover) : null;
    if (focus) this.mark(ctx, this.hover, this.ink.fg, 2);
    if (this.dragging) return;
    const close = this.view.zoom > 2.5, place = this.pointer || focus || (close ? [this.width / 2, this.height / 2] : null);
    this.root.dataset.labels = "0";
    if (place) this.paintLabels(ctx, this.near(place[0], place[1], close ? 420 : 80));
    else if (held !== null) this.paintLabels(ctx, [0, 1].filter((side) => this.shownSide(side)).map((side) => [0, side * this.n + held]));
  }

  paintHeld(ctx, t) {
    // A held token: what it is, what it looks for, and the groups that it looks into.
    const colour = this.ink.fg;
    if (this.shownSide(1)) {
      const [qx, qy] = this.at(this.n + t);
      ctx.strokeStyle = colour;
      const asked = groupsOf(this.q, t);
      for (const { g, x: cx, y: cy } of this.letters || []) {
        if (!asked.includes(g)) continue;
        const far = Math.hypot(cx - qx, cy - qy) || 1;
        ctx.globalAlpha = 0.7;
        ctx.lineWidth = 1.2;
        ctx.setLineDash([4, 4]);
        ctx.beginPath();
        ctx.moveTo(qx, qy);
        ctx.lineTo(cx - (12 * (cx - qx)) / far, cy - (12 * (cy - qy)) / far);
        ctx.stroke();
        ctx.setLineDash([]);
        ctx.globalAlpha = 1;
      }
      this.mark(ctx, this.n + t, colour, 2.5);
    }
    if (this.shownSide(0)) this.mark(ctx, t, colour, 3);
  }

  mark(ctx, point, colour, width) {
    const [x, y] = this.at(point), r = this.dot + 3.5;
    ctx.beginPath();
    ctx.arc(x, y, r + width / 2, 0, TAU);
    ctx.lineWidth = width + 2.5;
    ctx.strokeStyle = this.ink.bg;
    ctx.stroke();
    ctx.lineWidth = width;
    ctx.strokeStyle = colour;
    ctx.stroke();
  }

  paintLabels(ctx, found) {
    // At most 64, nearest first, none over another.
    ctx.font = "600 12px " + this.font;
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    ctx.lineJoin = "round";
    const taken = [];
    let count = 0;
    for (const [, point] of found.slice(0, 400)) {
      if (count >= LABELS) break;
      if (!this.lit(point)) continue;
      const t = this.tokenOf(point), [x, y] = this.at(point), group = this.own[this.sideOf(point)][t];
      const shown = quoted(this.text(t).trim() || this.text(t)).slice(1, -1).replace(/^ +$/, "␣");
      const said = shown + (group === 255 ? "" : " " + label(group));
      const width = ctx.measureText(said).width, left = x + width + 10 > this.width ? x - width - 9 : x + 8;
      const box = [left - 2, y - 8, left + width + 2, y + 8];
      if (taken.some((b) => box[0] < b[2] && box[2] > b[0] && box[1] < b[3] && box[3] > b[1])) continue;
      taken.push(box);
      count++;
      ctx.lineWidth = 3.5;
      ctx.strokeStyle = this.ink.bg;
      ctx.strokeText(said, left, y);
      ctx.fillStyle = this.ink.fg;
      ctx.fillText(said, left, y);
    }
    this.root.dataset.labels = String(count);
  }
}
