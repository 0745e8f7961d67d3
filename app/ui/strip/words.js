// What the strip says: sentence, tooltip and legend. Token text only ever enters as textContent.

const LETTERS = "ABCDEFGHIJKLMNOP";

function unpack(text, Kind) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Kind(bytes.buffer);
}

function words(packed, count) {
  const low = unpack(packed[0], Uint32Array);
  return { low, high: packed[1] ? unpack(packed[1], Uint32Array) : new Uint32Array(count) };
}

function groupsOf(set, i) {
  const found = [];
  for (let g = 0; g < 32; g++) if ((set.low[i] >>> g) & 1) found.push(g);
  for (let g = 0; g < 32; g++) if ((set.high[i] >>> g) & 1) found.push(32 + g);
  return found;
}

function label(g) {
  return LETTERS[g % 16] + (g >= 16 ? String(Math.floor(g / 16) + 1) : "");
}

function names(groups) {
  return groups.map(label).join(" ");
}

function quoted(text) {
  const shown = text.replace(/\n/g, "↵").replace(/\t/g, "⇥");
  return "“" + (shown.length > 28 ? shown.slice(0, 27) + "…" : shown) + "”";
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

class Words {
  sentence(token) {
    const say = this.say;
    say.replaceChildren();
    say.classList.toggle("nobody", token === null || token === undefined);
    if (token === null || token === undefined) {
      say.append(this.data.mode === "damage"
        ? "Each token is shaded by how much less (orange) or more (blue) likely it became. Point at one to see what it could draw on."
        : "Point at any token: the text shows what it still sees. Click to hold it.");
      return;
    }
    const i = this.askOf(token);
    const seen = this.count(i);
    const text = quoted(this.tokens[this.cellOf[token]]);
    say.append(element("b", "", text), " (token " + (token + 1) + ") ");
    if (this.data.mode === "damage" && this.change) {
      const d = this.change[token];
      say.append("became ", element("b", "", Math.abs(d).toFixed(2) + " nats " + (d < 0 ? "less" : "more") + " likely"), "; the token before it ");
    } else if (this.k) {
      const mine = groupsOf(this.k, token), asks = groupsOf(this.q, token);
      say.append("is in " + (mine.length > 1 ? "groups " : "group "), element("b", "", names(mine) || "none"), " and looks for ",
        element("b", "", names(asks) || "none"), ": it ");
    }
    const share = (100 * seen.all) / (i + 1);
    const parts = [[seen.near, "nearby"], [seen.group, this.blocks ? "by block" : "by group"], [seen.sink, "first"]].filter((part) => part[0]);
    say.append("sees ", element("b", "", seen.all.toLocaleString() + " of " + (i + 1).toLocaleString()),
      " tokens (" + (share >= 99.95 ? "100" : share.toPrecision(3)) + " %): " +
      parts.map((part) => part[0].toLocaleString() + " " + part[1]).join(", ") + ".");
    if (this.pin !== null && this.data.lost && this.data.lost.query === i) {
      say.append(" Lost: ", element("b", "", String(this.lost.size)), this.lost.size === 1 ? " token." : " tokens.");
    }
  }

  showTip(token, x, y) {
    const c = this.cellOf[token], tip = this.tip, begin = this.first[c], end = this.first[c + 1];
    tip.replaceChildren(element("div", "t", quoted(this.tokens[c])));
    if (end - begin > 1) tip.append(element("div", "m", (end - begin) + " tokens make this character"));
    for (let t = begin; t < end; t++) {
      const row = element("span", "row");
      const piece = end - begin > 1 ? this.data.pieces[c][t - begin] + " · " : "";
      row.append(piece + "token " + (t + 1) + (this.ids ? " · id " + this.ids[t] : ""));
      if (this.k) row.append(element("span", "m", " · in " + (names(groupsOf(this.k, t)) || "–") + " · looks for " + (names(groupsOf(this.q, t)) || "–")));
      tip.append(row);
      if (this.change && t > 0) tip.append(element("span", "row m", "log-likelihood " + (this.change[t] < 0 ? "−" : "+") + Math.abs(this.change[t]).toFixed(2) + " nats against dense"));
      const from = this.pin !== null ? this.askOf(this.pin) : null;
      if (from !== null && t !== from) tip.append(element("span", "row", this.relation(from, t)));
    }
    const wide = window.innerWidth, high = window.innerHeight;
    const size = tip.getBoundingClientRect();
    const left = Math.min(x + 14, wide - size.width - 8), top = y + 22 + size.height > high ? y - size.height - 14 : y + 22;
    tip.style.transform = `translate(${Math.round(Math.max(4, left))}px, ${Math.round(Math.max(4, top))}px)`;
    tip.style.visibility = "visible";
  }

  relation(i, j) {
    if (j > i) return "after the held token: never seen";
    const s = this.sees(i, j);
    const why = [s & STATE.W ? "nearby" : "", s & STATE.S ? "first token" : "", s & STATE.K ? (this.blocks ? "kept block" : "shared group") : ""].filter(Boolean);
    if (why.length) return "kept: " + why.join(", ");
    if (this.lost.has(j)) return "lost: dense attention gave it " + (100 * this.lost.get(j)).toPrecision(3) + " %";
    return "dropped";
  }

  hideTip() {
    this.tip.style.visibility = "hidden";
  }

  legend(data) {
    const bar = this.bar;
    bar.replaceChildren();
    const chip = (style, name, text, title) => {
      const made = element("span", "chip");
      const swatch = element("i");
      swatch.setAttribute("style", style);
      made.append(swatch);
      if (name) made.append(element("b", "", name));
      made.append(text);
      made.title = title;
      bar.append(made);
      return made;
    };
    if (data.mode === "damage") {
      bar.append("less likely", element("span", "scale"), "more likely than dense", element("span", "chip", "ends at ±" + data.scale.toPrecision(2) + " nats"));
    } else if (this.k) {
      for (const [g, share] of data.groups) {
        const made = element("button", "chip group");
        const swatch = element("i");
        swatch.style.background = `var(--g${g % 16})`;
        made.append(swatch, element("b", "", label(g)), (100 * share).toFixed(0) + " %");
        made.title = `Group ${label(g)}: ${(100 * share).toPrecision(3)} % of the tokens. Point here to see them.`;
        made.addEventListener("mouseenter", () => this.lightGroup(g));
        made.addEventListener("focus", () => this.lightGroup(g));
        const back = () => this.light(this.pin !== null ? this.pin : null);
        made.addEventListener("mouseleave", back);
        made.addEventListener("blur", back);
        bar.append(made);
      }
    }
    if (bar.childNodes.length) bar.append(element("span", "sep"));
    if (this.k) chip("background:color-mix(in srgb, var(--pair-kept) 34%, var(--bg))", "", "kept by group", "Shares a group with the token you point at.");
    if (this.blocks) chip("background:color-mix(in srgb, var(--pair-kept) 34%, var(--bg))", "", "kept by block", "In a block of " + data.blocks.size + " tokens that the block of the token you point at keeps.");
    if (data.window) chip("box-shadow:inset 0 -.2rem 0 var(--pair-window)", "", "nearby", "Within the window of " + data.window + " tokens.");
    if (data.sinks) chip("background:color-mix(in srgb, var(--fg) 78%, var(--bg))", "", "first tokens", "The first " + data.sinks + " tokens stay visible to all.");
    chip("background:color-mix(in srgb, var(--pair-dropped) 45%, var(--bg))", "", "dropped", "Not computed.");
    chip("background:color-mix(in srgb, var(--pair-lost) 40%, var(--bg));border-bottom:2px dashed var(--pair-lost)", "", "lost", "Dropped, though it is among the tokens that hold 90 % of dense attention. Hold a token to see.");
  }
}
