// An image, and over it what each model attends to: blue adds, orange with a minus takes away. Click a patch for its row.

const PLUS = [64, 148, 255], MINUS = [255, 146, 43];

function node(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function bytesOf(packed) {
  return Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
}

function said(value, unit) {
  const shown = unit === "%" ? 100 * value : value, size = Math.abs(shown);
  const figures = size === 0 ? "0" : size >= 99.95 ? size.toFixed(0) : size < 0.001 ? "under 0.001" : size.toPrecision(3);
  return `${shown < 0 ? "−" : ""}${figures}${unit ? " " + unit : ""}`;
}

function mixed(color, share) {
  return color.map((c) => Math.round(c * share));
}

class Maps {
  constructor(root) {
    this.root = root;
    this.box = root.querySelector(".tiles");
    this.tip = root.querySelector(".tip");
    this.live = root.querySelector(".sr");
    this.cursor = null;
    new ResizeObserver(() => this.draw()).observe(root);
  }

  update(data) {
    this.data = data;
    this.pixels = bytesOf(data.pixels);
    this.values = data.tiles.map((tile) => new Float32Array(bytesOf(tile.values).buffer));
    this.root.classList.toggle("still", Boolean(data.still));
    const titles = data.tiles.map((tile) => tile.title).join("|");
    if (titles !== this.titles) {
      this.titles = titles;
      this.build();
    }
    this.draw();
  }

  build() {
    this.parts = [{ title: "The image" }, ...this.data.tiles].map((tile, t) => {
      const box = node("div", "tile"), stage = node("div", "stage"), canvas = node("canvas"), token = node("div", "token");
      stage.tabIndex = 0;
      stage.setAttribute("role", "application");
      stage.setAttribute("aria-label", `${tile.title}: attention by patch. Arrow keys move${this.data.still ? "" : ", Enter picks the patch's row, Escape the class token's"}.`);
      stage.append(canvas);
      box.append(node("div", "title", tile.title), stage, token);
      canvas.addEventListener("mousemove", (event) => this.point(this.cellAt(canvas, event), event.clientX, event.clientY));
      canvas.addEventListener("mouseleave", () => this.point(null));
      canvas.addEventListener("click", (event) => this.pick(this.cellAt(canvas, event)));
      stage.addEventListener("keydown", (event) => this.key(event, canvas));
      stage.addEventListener("blur", () => this.point(null));
      return { box, canvas, token };
    });
    this.box.replaceChildren(...this.parts.map((part) => part.box));
  }

  // ---- drawing -----------------------------------------------------------------------------------------------------

  draw() {
    const wide = this.root.clientWidth;
    if (!this.data || !wide) return;
    const { tiles, most, signed, unit, picked } = this.data, gap = 18, count = this.parts.length;
    // Where three do not fit, the two that are compared stay side by side: the image lies under both.
    const narrow = count > 2 && wide < 150 * count + gap * (count - 1), across = narrow ? count - 1 : count;
    this.parts[0].box.style.display = narrow ? "none" : "";
    this.size = Math.max(100, Math.min(360, Math.floor((wide - gap * (across - 1)) / across)));
    this.parts.forEach((part, t) => {
      part.box.style.width = this.size + "px";
      this.paint(part.canvas, t - 1);
      const token = t && tiles[t - 1].token;
      part.token.textContent = t === 0 ? picked : token === null ? "" : `class token ${said(token, unit)}`;
    });
    const scale = this.root.querySelector(".scale"), at = (value) => {
      const share = Math.abs(value), color = value < 0 ? MINUS : PLUS;
      return `rgb(${mixed(color, 0.12 + 0.88 * share).join(" ")})`;
    };
    scale.querySelector("i").style.background = `linear-gradient(90deg,${signed ? at(-1) + "," : ""}rgb(16 16 18),${at(1)})`;
    scale.querySelector(".low").textContent = signed ? said(-most, unit) : "0";
    scale.querySelector(".high").textContent = said(most, unit);
    scale.querySelector(".said").textContent = `${narrow ? picked + "; " : ""}one scale for ${tiles.length > 1 ? "all maps" : "the map"}${signed ? "; orange with a minus: the patch is taken away" : ""}`;
  }

  paint(canvas, t) {
    const ratio = window.devicePixelRatio || 1, size = this.size, { side, channels, grid, query, most } = this.data;
    canvas.width = canvas.height = Math.round(size * ratio);
    canvas.style.width = canvas.style.height = size + "px";
    const ctx = canvas.getContext("2d"), small = new ImageData(side, side), area = side * side, dim = t < 0 ? 1 : 0.42;
    for (let i = 0; i < area; i++) {
      for (let c = 0; c < 3; c++) small.data[4 * i + c] = Math.round(14 + (this.pixels[(channels === 3 ? c : 0) * area + i] * dim * 241) / 255);
      small.data[4 * i + 3] = 255;
    }
    const own = document.createElement("canvas");
    own.width = own.height = side;
    own.getContext("2d").putImageData(small, 0, 0);
    ctx.imageSmoothingEnabled = false;
    ctx.drawImage(own, 0, 0, canvas.width, canvas.height);
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    const cell = size / grid;
    if (t >= 0) {
      ctx.textAlign = "center";
      ctx.textBaseline = "middle";
      ctx.font = `700 ${Math.max(9, Math.round(cell * 0.42))}px sans-serif`;
      for (let i = 0; i < grid * grid; i++) {
        const value = this.values[t][i], share = Math.min(1, Math.abs(value) / most);
        const x = (i % grid) * cell, y = Math.floor(i / grid) * cell;
        ctx.fillStyle = `rgb(${(value < 0 ? MINUS : PLUS).join(" ")} / ${(0.9 * share).toFixed(3)})`;
        ctx.fillRect(x, y, cell, cell);
        if (value < 0 && share > 0.08) {
          ctx.fillStyle = share > 0.5 ? "rgb(20 12 0 / .85)" : "rgb(255 236 214 / .85)";
          ctx.fillText("−", x + cell / 2, y + cell / 2);
        }
      }
    }
    ctx.strokeStyle = "rgb(255 255 255 / .13)";
    ctx.lineWidth = 1;
    for (let i = 1; i < grid; i++) {
      ctx.beginPath();
      ctx.moveTo(i * cell, 0);
      ctx.lineTo(i * cell, size);
      ctx.moveTo(0, i * cell);
      ctx.lineTo(size, i * cell);
      ctx.stroke();
    }
    if (query) this.ring(ctx, query - 1, cell, 3);
    if (this.cursor !== null) this.ring(ctx, this.cursor, cell, 2);
  }

  ring(ctx, i, cell, width) {
    const { grid } = this.data, x = (i % grid) * cell, y = Math.floor(i / grid) * cell;
    ctx.lineWidth = width + 2;
    ctx.strokeStyle = "rgb(10 10 12)";
    ctx.strokeRect(x + 2, y + 2, cell - 4, cell - 4);
    ctx.lineWidth = width;
    ctx.strokeStyle = "rgb(255 255 255)";
    ctx.strokeRect(x + 2, y + 2, cell - 4, cell - 4);
  }

  // ---- input -------------------------------------------------------------------------------------------------------

  cellAt(canvas, event) {
    const box = canvas.getBoundingClientRect(), { grid } = this.data, cell = box.width / grid;
    const x = Math.floor((event.clientX - box.left) / cell), y = Math.floor((event.clientY - box.top) / cell);
    return x >= 0 && y >= 0 && x < grid && y < grid ? y * grid + x : null;
  }

  point(i, x, y) {
    if (i === this.cursor && i === null) return;
    const moved = i !== this.cursor;
    this.cursor = i;
    if (moved) this.parts.forEach((part, t) => this.paint(part.canvas, t - 1));
    if (i === null) {
      this.tip.style.visibility = "hidden";
      return;
    }
    const { grid, tiles, unit, query, still } = this.data;
    const rows = tiles.map((tile, t) => node("span", "row", `${tile.title}: ${said(this.values[t][i], unit)}`));
    if (!still && query !== null) rows.push(node("span", "row m", query === i + 1 ? "Click again for the class token's row." : "Click for what this patch attends to."));
    this.tip.replaceChildren(node("b", "", `Row ${Math.floor(i / grid) + 1}, column ${(i % grid) + 1}`), ...rows);
    const size = this.tip.getBoundingClientRect();
    const left = x + 16 + size.width > window.innerWidth - 8 ? x - size.width - 14 : x + 16;
    const top = y + 18 + size.height > window.innerHeight ? y - size.height - 14 : y + 18;
    this.tip.style.transform = `translate(${Math.round(Math.max(4, left))}px, ${Math.round(Math.max(4, top))}px)`;
    this.tip.style.visibility = "visible";
  }

  pick(i) {
    if (i === null || this.data.still || this.data.query === null) return;
    this.send("picked", this.data.query === i + 1 ? 0 : i + 1);
  }

  key(event, canvas) {
    const step = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[event.key];
    const { grid, query } = this.data, now = this.cursor ?? (query ? query - 1 : Math.floor((grid * grid) / 2));
    if (step) {
      const [dx, dy] = this.cursor === null ? [0, 0] : step, most = grid - 1;
      const x = Math.max(0, Math.min(most, (now % grid) + dx)), y = Math.max(0, Math.min(most, Math.floor(now / grid) + dy));
      const box = canvas.getBoundingClientRect(), cell = box.width / grid;
      this.point(y * grid + x, box.left + (x + 0.5) * cell, box.top + (y + 0.5) * cell);
      this.live.textContent = Array.from(this.tip.children, (row) => row.textContent).join(". ");
    } else if (event.key === "Enter" || event.key === " ") this.pick(now);
    else if (event.key === "Escape") {
      this.point(null);
      if (query && !this.data.still) this.send("picked", 0);
    } else return;
    event.preventDefault();
  }
}

export default function (component) {
  const { data, parentElement, setStateValue } = component;
  const root = parentElement.querySelector(".fv");
  if (!root.maps) root.maps = new Maps(root);
  root.maps.send = setStateValue;
  root.maps.update(data);
}
