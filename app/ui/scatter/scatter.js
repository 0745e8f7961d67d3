// The map of a router's space: colour, side, zoom and selection live in the browser; Python hears of selections only.

const COLOURS = { group: "Group", part: "Part of speech", position: "Position", frequency: "Frequency" };
const HOME = { x: 0.5, y: 0.5, zoom: 1 };
// Survives leaving the page and coming back: the element is made anew then.
const MEMORY = (window.focusLabMap = window.focusLabMap || {});

class Scatter extends Points {
  constructor(root, send) {
    super();
    this.root = root;
    this.send = send;
    const part = (name) => root.querySelector("." + name);
    this.stage = part("stage");
    [this.below, this.above] = root.querySelectorAll("canvas");
    this.tip = part("tip");
    this.live = part("sr");
    this.bar = part("bar");
    this.list = part("list");
    this.hint = part("hint");
    this.font = getComputedStyle(root).fontFamily || "sans-serif";
    this.show = MEMORY.show || [true, true, true];
    this.view = { ...HOME };
    this.picked = { group: null, token: null };
    this.hover = this.pointer = this.lens = null;
    this.serial = null;
    this.listen();
    // The server's own changes of the address leave the colour out.
    this.clock = setInterval(() => (root.isConnected ? this.data && this.address() : clearInterval(this.clock)), 700);
    root.saveSvg = (background) => this.svg(background);
    new ResizeObserver(() => this.resize()).observe(this.stage);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.resize());
  }

  resize() {
    if (!this.data) return;
    this.size();
    this.draw();
  }

  update(data) {
    const fresh = !this.data || this.data.id !== data.id;
    const other = !this.data || this.data.place !== data.place;
    this.data = data;
    if (fresh) {
      this.colour = MEMORY.colour || data.colour;
      if (data.look && data.look.show && !MEMORY.show) {
        // A map without a single mark says nothing.
        const [keys, rings, middles] = data.look.show;
        this.show = MEMORY.show = [keys || !(rings && data.sides > 1), rings, middles];
      }
      if (this.colour === "part" && !data.parts) this.colour = "group";
      this.hover = this.lens = null;
      if (other) {
        const [x, y, zoom] = (!MEMORY.looked && data.look && data.look.view) || [HOME.x, HOME.y, HOME.zoom];
        MEMORY.looked = true;
        this.view = { x, y, zoom };
      }
      this.size();
      this.take(data);
      this.root.dataset.built = String(Number(this.root.dataset.built || 0) + 1);
      this.toolbar();
      this.address();
    }
    if (data.select && data.select[2] !== this.serial) {
      if (data.select[0] !== null || data.select[1] !== null) bringIntoView(this.root, this.serial === null);
      this.serial = data.select[2];
      this.picked = { group: data.select[0], token: data.select[1] };
    }
    if (this.picked.token !== null && this.picked.token >= this.n) this.picked = { group: null, token: null };
    this.legend();
    this.resize();
  }

  // ---- controls --------------------------------------------------------------------------------------------------

  setColour(colour) {
    this.colour = MEMORY.colour = colour;
    this.lens = null;
    this.address();
    this.toolbar();
    this.legend();
    this.draw();
  }

  address() {
    // The link says the colour too, without asking the server for anything.
    if (!window.location.protocol.startsWith("http")) return;
    const link = new URL(window.location.href);
    if (this.colour === "group") link.searchParams.delete("colour");
    else link.searchParams.set("colour", this.colour);
    const { x, y, zoom } = this.view, part = (value) => Math.max(1, Math.min(1000, Math.round(value * 1000)));
    if (zoom <= 1 && x === HOME.x && y === HOME.y) link.searchParams.delete("zoom");
    else link.searchParams.set("zoom", [part(x), part(y), Math.round(zoom * 10)].join("-"));
    const hidden = ["are", "look", "centroids"].filter((_, i) => !this.show[i]);
    if (hidden.length) link.searchParams.set("hide", hidden.join(","));
    else link.searchParams.delete("hide");
    if (link.href !== window.location.href) window.history.replaceState(window.history.state, "", link);
  }

  toolbar() {
    const bar = this.bar, focused = this.root.getRootNode().activeElement;
    const again = focused && bar.contains(focused) ? focused.dataset.name : null;
    bar.replaceChildren();
    const button = (text, name, on, act, title, role) => {
      const made = element("button", on ? "on" : "", text);
      made.type = "button";
      made.dataset.name = name;
      if (role) made.setAttribute("role", role);
      made.setAttribute(role ? "aria-checked" : "aria-pressed", String(Boolean(on)));
      made.title = title;
      made.addEventListener("click", act);
      return made;
    };
    const colours = element("span", "set");
    colours.setAttribute("role", "radiogroup");
    colours.setAttribute("aria-label", "Colour by");
    for (const [key, name] of Object.entries(COLOURS)) {
      if (key === "part" && !this.data.parts) continue;
      colours.append(button(name, key, this.colour === key, () => this.setColour(key), `Colour the points by ${name.toLowerCase()}.`, "radio"));
    }
    bar.append(element("span", "word", "Colour"), colours);
    const sides = element("span", "set");
    const kinds = [
      ["● are", "Keys: what tokens are, each in the colour of its group."],
      ["○ look for", "Queries: what tokens look for, each in the colour of the rarest group that it looks into."],
      ["◇ centroids", "The centroids that the router learned. A bias that balances the groups moves their borders, so tokens need not lie near them."],
    ];
    kinds.forEach(([name, title], i) => {
      if ((i === 1 && this.sides < 2) || (i === 2 && !this.centroids.length)) return;
      sides.append(button(name, "show" + i, this.show[i], () => this.toggle(i), title));
    });
    bar.append(element("span", "word", "Tokens"), sides);
    const zoom = element("span", "set right");
    zoom.append(
      button("−", "out", false, () => this.zoomBy(1 / 1.5), "Zoom out (−)"),
      button("+", "in", false, () => this.zoomBy(1.5), "Zoom in (+)"),
      button("Whole map", "home", false, () => this.home(), "See the whole map again (0)"),
    );
    bar.append(zoom);
    if (again) bar.querySelector(`[data-name="${again}"]`)?.focus();
  }

  toggle(side) {
    const next = this.show.map((on, i) => (i === side ? !on : on));
    if (!next[0] && !(next[1] && this.sides === 2)) next[side === 0 && this.sides === 2 ? 1 : 0] = true;
    this.show = MEMORY.show = next;
    this.hover = null;
    this.toolbar();
    this.draw();
  }

  home() {
    this.view = { ...HOME };
    this.fit();
    this.draw();
  }

  zoomBy(by, x = this.width / 2, y = this.height / 2) {
    const [wx, wy] = this.world(x, y), zoom = Math.max(1, Math.min(60, this.view.zoom * by));
    const kept = this.view.zoom / zoom;
    this.view = zoom === 1 ? { ...HOME } : { x: wx + (this.view.x - wx) * kept, y: wy + (this.view.y - wy) * kept, zoom };
    this.fit();
    this.hideTip();
    this.draw();
  }

  // ---- selection -------------------------------------------------------------------------------------------------

  pick(group, token) {
    const same = this.picked.group === group && this.picked.token === token;
    this.picked = same ? { group: null, token: null } : { group, token };
    this.legend();
    this.draw();
    clearTimeout(this.soon);
    this.soon = setTimeout(() => this.send({ ...this.picked, serial: this.serial }), this.fast ? 150 : 0);
    this.fast = false;
  }

  pickPoint(point) {
    const t = this.tokenOf(point), group = this.own[0][t];
    this.pick(group === 255 ? null : group, t);
  }

  point(point, x, y) {
    this.hover = point;
    this.stage.style.cursor = point === null ? "grab" : "pointer";
    if (point === null) this.hideTip();
    else this.showTip(point, x, y);
    this.drawOver();
  }

  // ---- input -----------------------------------------------------------------------------------------------------

  listen() {
    const stage = this.stage;
    const place = (event) => {
      const box = stage.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    let grip = null, moved = false;
    stage.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      grip = place(event);
      moved = false;
      stage.setPointerCapture(event.pointerId);
    });
    stage.addEventListener("pointermove", (event) => {
      if (!this.xy) return;
      const [x, y] = place(event);
      if (grip && (moved || Math.hypot(x - grip[0], y - grip[1]) > 4)) {
        moved = this.dragging = true;
        this.view = { ...this.view, x: this.view.x - (x - grip[0]) / this.scaleX, y: this.view.y + (y - grip[1]) / this.scaleY };
        grip = [x, y];
        this.hideTip();
        stage.style.cursor = "grabbing";
        this.draw();
        return;
      }
      this.pointer = [x, y];
      const letter = this.letterAt(x, y), centroid = letter === null ? this.centroidAt(x, y) : null;
      const found = letter === null && centroid === null ? this.near(x, y, 14)[0] : null;
      this.point(found ? found[1] : null, event.clientX, event.clientY);
      if (letter !== null) this.groupTip("Group " + label(letter), letter, event.clientX, event.clientY);
      else if (centroid !== null) this.groupTip("Learned centroid of group " + label(centroid), centroid, event.clientX, event.clientY);
    });
    stage.addEventListener("pointerup", (event) => {
      if (!grip) return;
      grip = null;
      this.dragging = false;
      if (moved) return this.draw();
      const [x, y] = place(event), letter = this.letterAt(x, y), g = letter === null ? this.centroidAt(x, y) : letter;
      if (g !== null) return this.pick(g, null);
      const found = this.near(x, y, 14)[0];
      if (found) this.pickPoint(found[1]);
      else if (this.picked.group !== null || this.picked.token !== null) this.pick(this.picked.group, this.picked.token);
    });
    stage.addEventListener("pointerleave", () => {
      this.pointer = null;
      this.point(null);
    });
    stage.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoomBy(Math.exp(-event.deltaY / 480), ...place(event));
    }, { passive: false });
    stage.addEventListener("dblclick", (event) => this.zoomBy(2, ...place(event)));
    stage.addEventListener("keydown", (event) => this.key(event));
    stage.addEventListener("blur", () => this.point(null));
  }

  key(event) {
    const held = this.picked.token, now = this.hover !== null ? this.hover : held !== null ? (this.shownSide(0) ? held : this.n + held) : null;
    const steps = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    let to = null;
    if (event.key === "Escape") {
      this.hideTip();
      this.hover = null;
      if (this.picked.group !== null || held !== null) this.pick(this.picked.group, held);
      else this.drawOver();
    } else if ((event.key === "Enter" || event.key === " ") && now !== null) this.pickPoint(now);
    else if (event.key === "+" || event.key === "=") this.zoomBy(1.5);
    else if (event.key === "-") this.zoomBy(1 / 1.5);
    else if (event.key === "0") this.home();
    else if (event.key === "PageDown" || event.key === "PageUp") {
      const base = now === null ? (this.shownSide(0) ? 0 : this.n) : now, side = this.sideOf(base) * this.n;
      to = side + Math.max(0, Math.min(this.n - 1, this.tokenOf(base) + (event.key === "PageDown" ? 1 : -1)));
    } else if (steps[event.key]) to = now === null ? this.middle() : this.neighbour(now, steps[event.key]);
    else return;
    event.preventDefault();
    if (to === null) return;
    const [x, y] = this.at(to), box = this.stage.getBoundingClientRect();
    if (x < 20 || y < 20 || x > this.width - 20 || y > this.height - 20) {
      this.view = { ...this.view, x: this.xy[2 * to], y: this.xy[2 * to + 1] };
      this.draw();
    }
    const [sx, sy] = this.at(to);
    this.pointer = null;
    this.point(to, box.left + sx, box.top + sy);
    this.live.textContent = this.tip.textContent;
  }

  middle() {
    const found = this.near(this.width / 2, this.height / 2, Math.max(this.width, this.height));
    return found.length ? found[0][1] : null;
  }

  neighbour(point, [dx, dy]) {
    const [x, y] = this.at(point);
    let best = null, least = Infinity;
    for (const [, other] of this.near(x, y, 360)) {
      const [ox, oy] = this.at(other), along = (ox - x) * dx + (oy - y) * dy, across = Math.abs((ox - x) * dy + (oy - y) * dx);
      if (along <= 0.5) continue;
      const cost = along + 2.5 * across;
      if (cost < least) [least, best] = [cost, other];
    }
    return best;
  }
}
Object.assign(Scatter.prototype, Told);

export default function (component) {
  const { data, parentElement, setStateValue } = component;
  const root = parentElement.querySelector(".fm");
  if (!root.map) root.map = new Scatter(root, (picked) => root.map.setState("picked", picked));
  root.map.setState = setStateValue;
  root.map.update(data);
}
