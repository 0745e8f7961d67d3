// What the map says in words: tooltips and the legend. Token text only ever enters as textContent.

const Told = {
  groupName(g) {
    return this.data.names[g] || "";
  },

  showTip(point, x, y) {
    const t = this.tokenOf(point), tip = this.tip, text = this.data.text, special = this.data.specials[t] !== undefined;
    tip.replaceChildren();
    const line = element("div", "line");
    if (special) line.append(element("b", "", this.text(t)));
    else {
      const before = text.slice(Math.max(0, this.begin[t] - 42), this.begin[t]).replace(/\n/g, "↵");
      const after = text.slice(this.end[t], this.end[t] + 42).replace(/\n/g, "↵");
      line.append("…" + before, element("b", "", this.text(t).replace(/\n/g, "↵")), after + "…");
    }
    line.dir = "auto";
    tip.append(line);
    const mine = groupsOf(this.k, t), asks = groupsOf(this.q, t);
    const row = (...parts) => {
      const made = element("div", "row");
      made.append(...parts);
      tip.append(made);
    };
    row("token " + (t + 1).toLocaleString() + (this.parts && this.parts[t] !== 255 ? " · " + this.data.kinds[this.parts[t]] : "") +
      " · " + (this.often[t] === 1 ? "once" : this.often[t] + " times") + " in this text");
    if (this.data.directed) {
      row(this.sideOf(point) ? "" : "▸ ", "is ", element("b", "", names(mine) || "none"), mine.length === 1 ? " " + this.groupName(mine[0]) : "");
      row(this.sideOf(point) ? "▸ " : "", "looks for ", element("b", "", names(asks) || "none"));
    } else row("group ", element("b", "", names(mine) || "none"), mine.length === 1 ? " " + this.groupName(mine[0]) : "");
    this.moveTip(x, y);
  },

  groupTip(title, g, x, y) {
    this.tip.replaceChildren(element("div", "line", title), element("div", "row", this.groupName(g)));
    this.moveTip(x, y);
  },

  moveTip(x, y) {
    const tip = this.tip, size = tip.getBoundingClientRect();
    const left = x + 16 + size.width > window.innerWidth ? x - size.width - 12 : x + 16;
    const top = y + 18 + size.height > window.innerHeight ? y - size.height - 12 : y + 18;
    tip.style.transform = `translate(${Math.round(Math.max(4, left))}px, ${Math.round(Math.max(4, top))}px)`;
    tip.style.visibility = "visible";
  },

  hideTip() {
    this.tip.style.visibility = "hidden";
  },

  legend() {
    const list = this.list, focused = this.root.getRootNode().activeElement;
    const again = focused && list.contains(focused) ? focused.dataset.name : null;
    const kind = this.colour;
    list.replaceChildren();
    if (kind === "position" || kind === "frequency") {
      const ramp = element("div", "ramp");
      ramp.style.background = `linear-gradient(90deg, ${this.data.ramp.join(",")})`;
      const ends = element("div", "ends");
      ends.append(element("span", "", kind === "position" ? "first token" : "once"), element("span", "", kind === "position" ? "last (" + this.n.toLocaleString() + ")" : this.most + " times"));
      list.append(element("div", "head", kind === "position" ? "Place in the text" : "How often the word is in this text"), ramp, ends);
    }
    if (kind === "part") {
      list.append(element("div", "head", "Parts of speech"));
      const counts = new Map();
      this.parts.forEach((p) => counts.set(p, (counts.get(p) || 0) + 1));
      for (const p of [...counts.keys()].sort((a, b) => a - b)) {
        const name = p === 255 ? "no tag" : this.data.kinds[p];
        list.append(this.entry("part" + p, p === 255 ? this.ink.faint : this.data.colours[p % 16], "", name, counts.get(p) / this.n, false, { kind: p }));
      }
    }
    if (kind !== "part") {
      list.append(element("div", "head", this.data.directed ? "Groups, by what their tokens are" : "Groups"));
      for (let g = 0; g < this.data.names.length; g++) {
        list.append(this.entry("group" + g, this.data.colours[g % 16], label(g), this.groupName(g), this.data.shares[g], this.picked.group === g, { group: g }));
      }
    }
    if (again) list.querySelector(`[data-name="${again}"]`)?.focus();
  },

  entry(key, colour, letter, name, share, on, lens) {
    const made = element("button", "entry" + (on ? " on" : ""));
    made.type = "button";
    made.dataset.name = key;
    const dot = element("i", "", letter);
    dot.style.setProperty("--c", colour);
    made.append(dot, element("span", "name", name), element("span", "share", (100 * share).toFixed(share < 0.0995 ? 1 : 0) + " %"));
    made.title = (letter ? `Group ${letter}: ` : "") + name;
    const look = (what) => () => {
      this.lens = what;
      this.draw();
    };
    made.addEventListener("mouseenter", look(lens));
    made.addEventListener("focus", look(lens));
    made.addEventListener("mouseleave", look(null));
    made.addEventListener("blur", look(null));
    if (lens.group !== undefined) {
      made.setAttribute("aria-pressed", String(on));
      made.addEventListener("click", () => this.pick(lens.group, null));
    }
    return made;
  },

  // ---- picture -----------------------------------------------------------------------------------------------------

  svg(background) {
    // What the stage shows, as vectors, with the legend's entries at the right.
    const escape = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");
    const out = [], fixed = (v) => v.toFixed(1), w = this.width, h = this.height, r = this.dot, wide = w + 300;
    for (const lit of [false, true]) {
      for (let side = this.sides - 1; side >= 0; side--) {
        for (let t = 0; this.show[side] && t < this.n; t++) {
          const point = side * this.n + t, [x, y] = this.at(point);
          if (Boolean(this.lit(point)) !== lit || x < 0 || y < 0 || x > w || y > h) continue;
          const ink = lit ? this.paint(this.classOf(point)) : this.ink.faint, how = side ? `fill="none" stroke="${ink}"` : `fill="${ink}"`;
          out.push(`<circle cx="${fixed(x)}" cy="${fixed(y)}" r="${fixed(side ? r + 0.7 : r)}" ${how} opacity="${lit ? 0.87 : 0.1}"/>`);
        }
      }
    }
    const mark = (x, y, colour, letter) => `<circle cx="${fixed(x)}" cy="${fixed(y)}" r="10" fill="${background}" stroke="${colour}" stroke-width="2.25"/>` +
      `<text x="${fixed(x)}" y="${fixed(y + 4)}" text-anchor="middle" font-weight="700" font-size="12">${escape(letter)}</text>`;
    for (const { g, x, y } of this.letters || []) {
      if (x > 0 && y > 0 && x < w && y < h) out.push(mark(x, y, this.letterInk(g), label(g)));
    }
    [...this.list.querySelectorAll(".entry")].forEach((entry, i) => {
      const dot = entry.querySelector("i"), y = 20 + 26 * i, colour = dot.style.getPropertyValue("--c");
      out.push(mark(w + 22, y, colour, dot.textContent), `<text x="${w + 40}" y="${y + 4}" font-size="13">${escape(entry.querySelector(".name").textContent)}</text>`);
    });
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${wide}" height="${h}" viewBox="0 0 ${wide} ${h}" font-family="sans-serif" fill="${this.ink.fg}">` +
      `<rect width="100%" height="100%" fill="${background}"/>${out.join("")}</svg>`;
  },
};
