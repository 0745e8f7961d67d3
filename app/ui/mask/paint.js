// Colours a mask's cells and draws them with their axes. Comes after cells.js, in one module with it.

const MOST_CELLS = 640;
const FLOOR = 0.22;
const FLOOR_LOST = 0.5;

// Tokens a cell: 1 while every pair has a pixel of its own.
function stepFor(span, pixels) {
  return Math.max(1, Math.ceil(span / Math.min(pixels, MOST_CELLS)));
}

// The cells of a view: where they begin, how many, their flags (exact maxima), shares and lost shares.
function cellsOf(mask, other, lost, view, pixels) {
  const step = stepFor(view.span, pixels);
  const i0 = Math.floor(view.i / step) * step, j0 = Math.floor(view.j / step) * step;
  const rows = Math.min(Math.ceil((view.i + view.span - i0) / step), Math.ceil((mask.count - i0) / step));
  const columns = Math.min(Math.ceil((view.j + view.span - j0) / step), Math.ceil((mask.count - j0) / step));
  const flags = poolMask(mask, i0, j0, step, rows, columns);
  const flagsToo = other ? poolMask(other, i0, j0, step, rows, columns) : null;
  const shares = shareMask(mask, other, i0, j0, step, rows, columns);
  const found = { step, i0, j0, rows, columns, flags, flagsToo, planes: shares.planes, exact: shares.exact, lost: null };
  if (lost && !other) found.lost = lostShares(lost, mask.first, found);
  return found;
}

// Lost pairs of each cell over its causal pairs in the rows whose lost pairs are known, 0 to 1.
function lostShares(lost, first, { step, i0, j0, rows, columns }) {
  const counts = new Float32Array(rows * columns), known = new Uint16Array(rows);
  for (let r = 0; r < lost.rows.length; r++) {
    const y = Math.floor((lost.rows[r] - i0) / step);
    if (y < 0 || y >= rows) continue;
    known[y]++;
    for (let m = lost.start[r]; m < lost.start[r + 1]; m++) {
      const x = Math.floor((lost.keys[m] - j0) / step);
      if (x >= 0 && x < columns) counts[y * columns + x]++;
    }
  }
  for (let y = 0; y < rows; y++) {
    for (let x = 0; x < columns; x++) if (counts[y * columns + x]) counts[y * columns + x] /= known[y] * step;
  }
  return counts;
}

// RGBA of every cell. `ink` holds [r, g, b] by name.
function paintCells(cells, ink, pixels) {
  const { flags, flagsToo, planes, lost } = cells;
  const plain = [ink.group, ink.near, ink.sink], two = [ink.both, ink.first, ink.second];
  for (let c = 0; c < flags.length; c++) {
    if (!(flags[c] & WHY.PAIR)) {
      pixels[4 * c + 3] = 0;
      continue;
    }
    // A small share of a pooled cell is lifted a little, or the eye takes it for none.
    let a = flagsToo || cells.step === 1 ? planes[0][c] / 255 : Math.pow(planes[0][c] / 255, 0.75), b = planes[1][c] / 255, d = planes[2][c] / 255;
    if (flagsToo) {
      // A kept pair is never invisible, however few there are in the cell.
      const one = flags[c] & ~WHY.PAIR, too = flagsToo[c] & ~WHY.PAIR;
      if (one && too && !(a + b + d)) a = FLOOR;
      else if (one && !too) b = Math.max(b, FLOOR);
      else if (too && !one) d = Math.max(d, FLOOR);
    } else {
      if (flags[c] & (WHY.GROUP | WHY.BLOCK)) a = Math.max(a, FLOOR);
      if (flags[c] & WHY.WINDOW) b = Math.max(b, 1 - a - d > 0 ? Math.min(FLOOR, 1 - a - d) : 0);
      if (flags[c] & WHY.SINK) d = Math.max(d, 0.8);
    }
    const ends = flagsToo ? two : plain;
    if (!flagsToo && a + b + d > 1) b = Math.max(0, 1 - a - d);
    const sum = a + b + d, rest = Math.max(0, 1 - sum), all = sum + rest;
    const orange = lost && lost[c] ? Math.max(Math.min(1, lost[c]), FLOOR_LOST) : 0;
    for (let k = 0; k < 3; k++) {
      const value = (a * ends[0][k] + b * ends[1][k] + d * ends[2][k] + rest * ink.dropped[k]) / all;
      pixels[4 * c + k] = value + orange * (ink.lost[k] - value);
    }
    pixels[4 * c + 3] = 255;
  }
}

function mix(a, b, share) {
  return a.map((v, k) => Math.round(v * share + b[k] * (1 - share)));
}

// The colours that the page's theme gives now; canvases know no CSS variables.
function readInk(root) {
  const style = getComputedStyle(root);
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const read = (name) => {
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = style.getPropertyValue(name).trim() || "#888";
    probe.fillRect(0, 0, 1, 1);
    return [...probe.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  };
  const paper = read("--bg"), text = read("--fg");
  const dark = paper[0] + paper[1] + paper[2] < 380;
  const groups = Array.from({ length: 16 }, (_, g) => read("--g" + g));
  return {
    paper, text, dark, groups,
    group: read("--pair-kept"),
    near: mix(read("--pair-window"), paper, dark ? 0.5 : 0.42),
    edge: read("--pair-window"),
    sink: mix(text, paper, 0.82),
    lost: read("--pair-lost"),
    dropped: mix(read("--pair-dropped"), paper, dark ? 0.2 : 0.34),
    both: mix(text, paper, 0.52),
    first: read("--pair-kept"),
    second: read("--pair-second"),
    faint: mix(text, paper, 0.55),
    line: mix(text, paper, 0.16),
  };
}

function css(color, alpha) {
  return alpha === undefined ? `rgb(${color.join(" ")})` : `rgb(${color.join(" ")} / ${alpha})`;
}

// A round distance between ticks, about `room` pixels apart.
function tickStep(scale, room) {
  const least = room / scale;
  let unit = 1;
  for (;;) {
    for (const m of [1, 2, 5]) if (m * unit >= least) return m * unit;
    unit *= 10;
  }
}

// Draws cells, window edge, axes and labels; everything that does not follow the pointer.
class Painter {
  constructor(canvas) {
    this.canvas = canvas;
    this.ctx = canvas.getContext("2d");
    this.sheet = document.createElement("canvas");
  }

  // place: {left, top, side, bottom, ratio}; returns the cells that were drawn.
  draw(model, view, place, ink) {
    const { ctx, canvas } = this, { left, top, side, ratio } = place;
    const wide = left + side + 4, high = top + side + place.bottom;
    if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(high * ratio)) {
      canvas.width = Math.round(wide * ratio);
      canvas.height = Math.round(high * ratio);
      canvas.style.width = wide + "px";
      canvas.style.height = high + "px";
    }
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.clearRect(0, 0, wide, high);
    const cells = cellsOf(model.mask, model.other, model.lost, view, side * ratio);
    const scale = side / view.span;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, side, side);
    ctx.clip();
    this.sheetOf(cells, ink);
    ctx.imageSmoothingEnabled = cells.step * scale * ratio < 2.5;
    const x = left + (cells.j0 - view.j) * scale, y = top + (cells.i0 - view.i) * scale, size = cells.step * scale;
    ctx.drawImage(this.sheet, x, y, cells.columns * size, cells.rows * size);
    if (scale >= 9) this.grid(view, place, scale, ink);
    if (!model.other) this.edge(model.mask, view, place, scale, ink);
    if (scale >= 19 && !model.other) this.letters(model, view, place, scale, ink);
    ctx.restore();
    ctx.strokeStyle = css(ink.line);
    ctx.lineWidth = 1;
    ctx.strokeRect(left - 0.5, top - 0.5, side + 1, side + 1);
    this.axes(model, view, place, scale, ink);
    return cells;
  }

  sheetOf(cells, ink) {
    const { sheet } = this;
    sheet.width = Math.max(1, cells.columns);
    sheet.height = Math.max(1, cells.rows);
    const image = new ImageData(sheet.width, sheet.height);
    paintCells(cells, ink, image.data);
    sheet.getContext("2d").putImageData(image, 0, 0);
  }

  grid(view, { left, top, side }, scale, ink) {
    const { ctx } = this;
    ctx.strokeStyle = css(ink.paper, 0.55);
    ctx.lineWidth = 1;
    ctx.beginPath();
    for (let t = Math.ceil(view.j); t <= view.j + view.span; t++) {
      const x = left + (t - view.j) * scale;
      ctx.moveTo(x, top);
      ctx.lineTo(x, top + side);
    }
    for (let t = Math.ceil(view.i); t <= view.i + view.span; t++) {
      const y = top + (t - view.i) * scale;
      ctx.moveTo(left, y);
      ctx.lineTo(left + side, y);
    }
    ctx.stroke();
  }

  // The window's edge: where "nearby" ends.
  edge(mask, view, { left, top, side }, scale, ink) {
    const window = Math.max(0, ...mask.terms.filter((term) => term.kind === "window").map((term) => term.size));
    if (!window || window >= mask.count) return;
    const { ctx } = this;
    ctx.strokeStyle = css(ink.edge);
    ctx.lineWidth = 1.6;
    ctx.beginPath();
    const begin = Math.max(0, Math.floor(Math.max(view.j, view.i - window)) - 1);
    const end = Math.min(mask.count - window, Math.ceil(Math.min(view.j + view.span, view.i + view.span - window)) + 1);
    const at = (i, j) => [left + (j - view.j) * scale, top + (i - view.i) * scale];
    if (end <= begin) return;
    ctx.moveTo(...at(begin + window, begin));
    if (scale < 5) ctx.lineTo(...at(end + window, end));
    else {
      for (let j = begin; j < end; j++) {
        ctx.lineTo(...at(j + window, j + 1));
        ctx.lineTo(...at(j + window + 1, j + 1));
      }
    }
    ctx.stroke();
  }

  letters(model, view, { left, top }, scale, ink) {
    const { ctx } = this;
    ctx.font = `600 ${Math.min(13, scale * 0.42)}px sans-serif`;
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    ctx.fillStyle = "#fff";
    const to = (start) => Math.min(model.mask.count, Math.ceil(start + view.span));
    for (let i = Math.floor(view.i); i < to(view.i); i++) {
      for (let j = Math.floor(view.j); j < to(view.j) && j <= i; j++) {
        const flags = whyKept(model.mask, i, j);
        if (!(flags & WHY.GROUP) || flags & WHY.SINK) continue;
        const text = sharedGroups(model.mask, i, j).slice(0, 2).map(label).join(" ");
        ctx.fillText(text, left + (j + 0.5 - view.j) * scale, top + (i + 0.5 - view.i) * scale);
      }
    }
  }

  axes(model, view, place, scale, ink) {
    const { ctx } = this, { left, top, side } = place;
    const names = scale >= 11;
    const step = names ? 1 : tickStep(scale, 46);
    ctx.fillStyle = css(ink.faint);
    ctx.strokeStyle = css(ink.faint);
    ctx.font = names ? "11px sans-serif" : "11px sans-serif";
    ctx.textBaseline = "middle";
    const count = model.mask.count, gap = 13;
    const ticks = (start) => {
      const found = [];
      const unit = names ? 1 : step;
      // Tokens are counted from 1, as in the text.
      for (let t = Math.ceil((start + 1) / unit) * unit - 1; t < Math.min(count, start + view.span); t += unit) {
        if (t >= 0 && t + 0.5 >= start && t + 0.5 <= start + view.span) found.push(t);
      }
      return names ? found : [...(start <= 0 ? [0] : []), ...found];
    };
    for (const t of ticks(view.i)) {
      const y = top + (t + 0.5 - view.i) * scale;
      ctx.textAlign = "right";
      ctx.fillText(names ? short(model.tokens[t], 10) : (t + 1).toLocaleString("en-US"), left - gap, y, left - gap - 18);
    }
    for (const t of ticks(view.j)) {
      const x = left + (t + 0.5 - view.j) * scale;
      ctx.save();
      ctx.translate(x, top + side + gap);
      if (names) {
        ctx.rotate(-Math.PI / 3);
        ctx.textAlign = "right";
        ctx.fillText(short(model.tokens[t], 8), 0, 0, place.bottom);
      } else {
        ctx.textAlign = "center";
        ctx.fillText((t + 1).toLocaleString("en-US"), 0, 5);
      }
      ctx.restore();
    }
    this.bands(model, view, place, scale, ink);
    ctx.fillStyle = css(ink.faint);
    ctx.font = "600 12px sans-serif";
    ctx.textAlign = "center";
    ctx.fillText("key: the token that is looked at", left + side / 2, top + side + (names ? place.bottom - 8 : 40));
    ctx.save();
    ctx.translate(9, top + side / 2);
    ctx.rotate(-Math.PI / 2);
    ctx.fillText("query: the token that looks", 0, 0);
    ctx.restore();
  }

  // Beside the axes: the groups that each key is in and that each query looks for.
  bands(model, view, { left, top, side }, scale, ink) {
    const term = groupTerm(model.mask);
    if (!term || model.other) return;
    const { ctx } = this, thick = 6, count = model.mask.count;
    const step = Math.max(1, Math.ceil(1 / scale));
    const stripes = (set, t) => groupsOf(set, t).slice(0, 4);
    for (let t = Math.floor(Math.max(0, view.i) / step) * step; t < Math.min(count, view.i + view.span); t += step) {
      const y = top + (t - view.i) * scale, high = Math.min(step * scale + 0.4, top + side - y);
      const mine = stripes(term.q, t);
      mine.forEach((g, at) => {
        ctx.fillStyle = css(ink.groups[g % 16]);
        ctx.fillRect(left - thick - 3 + (at * thick) / mine.length, Math.max(top, y), thick / mine.length, high);
      });
    }
    for (let t = Math.floor(Math.max(0, view.j) / step) * step; t < Math.min(count, view.j + view.span); t += step) {
      const x = left + (t - view.j) * scale, wide = Math.min(step * scale + 0.4, left + side - x);
      const mine = stripes(term.k, t);
      mine.forEach((g, at) => {
        ctx.fillStyle = css(ink.groups[g % 16]);
        ctx.fillRect(Math.max(left, x), top + side + 3 + (at * thick) / mine.length, wide, thick / mine.length);
      });
    }
  }
}
