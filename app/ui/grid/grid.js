// Heads as small maps: one panel a measure, layers down and heads across. Click a cell to choose that head.

function node(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function said(value, unit) {
  if (!Number.isFinite(value)) return "–";
  const shown = unit === "%" ? 100 * value : value;
  const figures = shown === 0 ? "0" : Math.abs(shown) >= 99.95 ? shown.toFixed(0) : shown.toPrecision(3);
  return `${figures} ${unit}`;
}

class Grid {
  constructor(root) {
    this.root = root;
    this.panels = root.querySelector(".panels");
    this.tip = root.querySelector(".tip");
    this.live = root.querySelector(".sr");
    this.cursor = null;
    new ResizeObserver(() => this.draw()).observe(root);
    root.addEventListener("keydown", (event) => this.key(event));
    root.addEventListener("transitionend", (event) => {
      if (event.target === root && event.propertyName === "background-color") this.draw();
    });
  }

  update(data) {
    this.data = data;
    this.values = data.panels.map((panel) => {
      const raw = atob(panel.values), bytes = Uint8Array.from(raw, (c) => c.charCodeAt(0));
      return new Float32Array(bytes.buffer);
    });
    const titles = data.panels.map((panel) => panel.title).join("|");
    if (titles !== this.titles) {
      this.titles = titles;
      this.build();
    }
    this.draw();
  }

  build() {
    this.panels.replaceChildren();
    this.parts = this.data.panels.map((panel, p) => {
      const box = node("div", "panel"), title = node("div", "title", panel.title), base = node("canvas"), over = node("canvas", "over");
      const stage = node("div", "stage"), scale = node("div", "scale");
      box.title = "";
      title.title = panel.meaning;
      stage.append(base, over);
      scale.append(node("span", "low"), node("i"), node("span", "high"));
      scale.querySelector("i").style.background = `linear-gradient(90deg,${CIVIDIS.map((c) => `rgb(${c.join(" ")})`).join(",")})`;
      box.append(title, stage, scale);
      this.panels.append(box);
      stage.tabIndex = 0;
      stage.setAttribute("role", "application");
      stage.setAttribute("aria-label", `${panel.title} by layer and head. Arrow keys move${this.data.still ? "" : ", Enter chooses the head"}.`);
      base.addEventListener("mousemove", (event) => this.point(this.cellAt(p, event), event.clientX, event.clientY));
      base.addEventListener("mouseleave", () => this.point(null));
      base.addEventListener("click", (event) => this.choose(this.cellAt(p, event)));
      stage.addEventListener("blur", () => this.point(null));
      return { base, over, scale, stage };
    });
  }

  // ---- drawing -----------------------------------------------------------------------------------------------------

  draw() {
    const wide = this.root.clientWidth;
    if (!this.data || !wide) return;
    const { layers, heads, panels } = this.data, ratio = window.devicePixelRatio || 1;
    const across = Math.max(1, Math.min(panels.length, Math.floor((wide + 24) / 224)));
    const room = Math.floor((wide - 24 * (across - 1)) / across) - 34;
    const w = Math.max(2, Math.min(40, Math.floor(room / heads))), h = Math.max(4, Math.min(16, Math.floor(420 / layers)));
    this.size = { left: 30, top: 2, w, h };
    const style = getComputedStyle(this.root);
    const text = style.color;
    panels.forEach((panel, p) => {
      const { base, over, scale } = this.parts[p];
      for (const canvas of [base, over]) {
        const width = 34 + w * heads, height = 24 + h * layers;
        canvas.width = width * ratio;
        canvas.height = height * ratio;
        canvas.style.width = width + "px";
        canvas.style.height = height + "px";
      }
      const ctx = base.getContext("2d"), gap = w > 5 && h > 5 ? 1 : 0;
      ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
      for (let layer = 0; layer < layers; layer++) {
        for (let head = 0; head < heads; head++) {
          const value = this.values[p][layer * heads + head];
          ctx.fillStyle = Number.isFinite(value) ? `rgb(${cividis((value - panel.low) / (panel.high - panel.low || 1)).join(" ")})` : "rgb(128 128 128 / .2)";
          ctx.fillRect(30 + head * w, 2 + layer * h, w - gap, h - gap);
        }
      }
      ctx.fillStyle = text;
      ctx.globalAlpha = 0.65;
      ctx.font = "11px sans-serif";
      ctx.textAlign = "right";
      ctx.textBaseline = "middle";
      const every = Math.ceil(15 / h) > 1 ? Math.max(5, Math.ceil(15 / h)) : 1;
      for (let layer = 0; layer < layers; layer += every) ctx.fillText(String(layer), 25, 2 + (layer + 0.5) * h);
      ctx.textAlign = "center";
      const step = heads * w < 17 * heads ? Math.max(2, Math.ceil(17 / w)) : 1;
      for (let head = 0; head < heads; head += step) ctx.fillText(String(head), 30 + (head + 0.5) * w, 13 + layers * h);
      scale.style.width = w * heads + "px";
      scale.querySelector(".low").textContent = said(panel.low, panel.unit);
      scale.querySelector(".high").textContent = said(panel.high, panel.unit);
    });
    this.mark();
  }

  mark() {
    const { left, top, w, h } = this.size, { heads, picked } = this.data, ratio = window.devicePixelRatio || 1;
    const style = getComputedStyle(this.root), paper = style.backgroundColor, text = style.color;
    for (const { over } of this.parts) {
      const ctx = over.getContext("2d");
      ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
      ctx.clearRect(0, 0, over.width, over.height);
      const ring = ([layer, head], color) => {
        const x = left + (head === null ? 0 : head * w), y = top + layer * h, wide = head === null ? heads * w : w;
        ctx.lineWidth = 4;
        ctx.strokeStyle = paper;
        ctx.strokeRect(x - 1, y - 1, wide + 1, h + 1);
        ctx.lineWidth = 2;
        ctx.strokeStyle = color;
        ctx.strokeRect(x - 1, y - 1, wide + 1, h + 1);
      };
      if (picked) ring(picked, style.getPropertyValue("--pair-lost"));
      if (this.cursor) ring(this.cursor, text);
    }
  }

  // ---- input -------------------------------------------------------------------------------------------------------

  cellAt(p, event) {
    const box = this.parts[p].base.getBoundingClientRect(), { left, top, w, h } = this.size;
    const head = Math.floor((event.clientX - box.left - left) / w), layer = Math.floor((event.clientY - box.top - top) / h);
    const inside = head >= 0 && layer >= 0 && head < this.data.heads && layer < this.data.layers;
    return inside ? [layer, head] : null;
  }

  point(cell, x, y) {
    this.cursor = cell;
    this.mark();
    if (!cell) {
      this.tip.style.visibility = "hidden";
      return;
    }
    const [layer, head] = cell, tip = this.tip;
    tip.replaceChildren(node("b", "", `Layer ${layer}, head ${head}`));
    this.data.panels.forEach((panel, p) => {
      tip.append(node("span", "row", `${panel.title}: ${said(this.values[p][layer * this.data.heads + head], panel.unit)}`));
    });
    if (!this.data.still) tip.append(node("span", "row m", this.data.click));
    const size = tip.getBoundingClientRect();
    const left = x + 16 + size.width > window.innerWidth - 8 ? x - size.width - 14 : x + 16;
    const top = y + 18 + size.height > window.innerHeight ? y - size.height - 14 : y + 18;
    tip.style.transform = `translate(${Math.round(Math.max(4, left))}px, ${Math.round(Math.max(4, top))}px)`;
    tip.style.visibility = "visible";
  }

  choose(cell) {
    if (cell) this.pick("picked", cell);
  }

  key(event) {
    const arrows = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const { layers, heads, picked } = this.data, at = this.parts.findIndex((part) => part.stage === event.target);
    if (at < 0) return;
    const now = this.cursor || (picked ? [picked[0], picked[1] || 0] : [0, 0]);
    if (arrows[event.key]) {
      const [di, dj] = this.cursor ? arrows[event.key] : [0, 0];
      const cell = [Math.max(0, Math.min(layers - 1, now[0] + di)), Math.max(0, Math.min(heads - 1, now[1] + dj))];
      const box = this.parts[at].base.getBoundingClientRect(), { left, top, w, h } = this.size;
      this.point(cell, box.left + left + (cell[1] + 0.5) * w, box.top + top + (cell[0] + 0.5) * h);
      this.live.textContent = Array.from(this.tip.children, (row) => row.textContent).join(". ");
    } else if (event.key === "Enter" || event.key === " ") this.choose(now);
    else if (event.key === "Escape") this.point(null);
    else return;
    event.preventDefault();
  }
}

export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".fg");
  if (!root.grid) root.grid = new Grid(root);
  root.grid.pick = setTriggerValue;
  root.grid.update(data);
}
