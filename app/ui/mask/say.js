// What the mask says: sentence, tooltip and legend. Token text only ever enters as textContent or canvas text.

const LETTERS = "ABCDEFGHIJKLMNOP";

function label(g) {
  return LETTERS[g % 16] + (g >= 16 ? String(Math.floor(g / 16) + 1) : "");
}

function short(text, most) {
  let shown = text.replace(/\n/g, "↵").replace(/\t/g, "⇥");
  if (shown.startsWith(" ") && shown.trim()) shown = shown.slice(1);
  if (!shown.trim()) shown = shown.replace(/ /g, "␣");
  const letters = [...shown];
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : shown;
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function number(value) {
  return value.toLocaleString("en-US");
}

function percent(share) {
  const value = 100 * share;
  return (value === 0 ? "0" : value >= 99.95 ? "100" : value < 0.001 ? "< 0.001" : value.toPrecision(3)) + " %";
}

// Why a pair is kept, in words; empty for a dropped one.
function reasons(mask, i, j) {
  const flags = whyKept(mask, i, j), said = [];
  if (flags & WHY.WINDOW) said.push("nearby");
  if (flags & WHY.SINK) said.push("first token");
  if (flags & WHY.GROUP) {
    const shared = sharedGroups(mask, i, j);
    said.push("shared group" + (shared.length > 1 ? "s " : " ") + shared.map(label).join(" "));
  }
  if (flags & WHY.BLOCK) said.push("kept block");
  return said;
}

class Say {
  quote(t) {
    return "“" + short(this.data.tokens[t], 28) + "”";
  }

  sentence(cell) {
    const say = this.say;
    say.replaceChildren();
    say.classList.toggle("hint", !cell);
    if (!cell) {
      say.append("Each row is a token that looks, each column a token before it. Point at a pair to see why it is kept; click to hold it.");
      return;
    }
    const [i] = cell, mask = this.model.mask, seen = countRow(mask, i);
    say.append(element("b", "", this.quote(i)), ` (token ${number(i + 1)}) sees `);
    if (this.model.other) {
      const too = countRow(this.model.other, i);
      say.append(element("b", "", number(seen.all)), ` (${this.data.names[0]}) or `, element("b", "", number(too.all)),
        ` (${this.data.names[1]}) of ${number(seen.possible)} tokens.`);
      return;
    }
    const parts = [[seen.near, "nearby"], [seen.group, "by group"], [seen.block, "by block"], [seen.sink, "first"]];
    say.append(element("b", "", `${number(seen.all)} of ${number(seen.possible)}`),
      ` tokens (${percent(seen.all / Math.max(1, seen.possible))}): ` +
      parts.filter((part) => part[0]).map((part) => `${number(part[0])} ${part[1]}`).join(", ") + ".");
    const lost = this.lostOf(i);
    if (lost) {
      say.append(" Lost: ", element("b", "", lost.size ? `${number(lost.size)} token${lost.size > 1 ? "s" : ""}` : "none"),
        lost.size ? ` with ${percent(lost.mass)} of its dense attention.` : ".");
    }
  }

  fillTip([i, j]) {
    const tip = this.tip, { mask, other } = this.model;
    tip.replaceChildren();
    const term = groupTerm(mask);
    const row = (role, t, note) => {
      const made = element("span", "row");
      made.append(element("span", "m", role + " "), element("b", "", this.quote(t)), element("span", "m", ` token ${number(t + 1)}${note}`));
      tip.append(made);
    };
    const names = (set, t) => groupsOf(set, t).map(label).join(" ") || "–";
    row("query", i, term ? ` · looks for ${names(term.q, i)}` : "");
    row("key", j, term ? ` · in ${names(term.k, j)}` : "");
    if (!isPair(mask, i, j)) {
      tip.append(element("span", "row", j > i ? "The key comes after the query: no pair." : "Padding: no pair."));
      return;
    }
    tip.append(element("span", "row m", i === j ? "the token itself" : `distance ${number(i - j)}`));
    const verdict = (which) => {
      const why = reasons(which, i, j);
      return why.length ? "kept: " + why.join(", ") : "dropped";
    };
    if (other) {
      tip.append(element("span", "row", `${this.data.names[0]}: ${verdict(mask)}`), element("span", "row", `${this.data.names[1]}: ${verdict(other)}`));
    } else {
      const mass = this.lostMass(i, j);
      const text = mass ? `lost: dense attention gave it ${percent(mass)}` : verdict(mask);
      tip.append(element("span", "row verdict", text));
    }
    const step = this.cells ? this.cells.step : 1;
    if (step === 1) return;
    const share = (which) => percent(cellShare(which, i - ((i - this.cells.i0) % step), j - ((j - this.cells.j0) % step), step));
    tip.append(element("span", "row m", `This cell: ${step} × ${step} pairs, ` +
      (other ? `${share(mask)} kept by ${this.data.names[0]}, ${share(other)} by ${this.data.names[1]}` : `${share(mask)} kept`)));
  }

  placeTip(x, y) {
    const tip = this.tip, size = tip.getBoundingClientRect();
    const left = x + 16 + size.width > window.innerWidth - 8 ? x - size.width - 14 : x + 16;
    const top = y + 18 + size.height > window.innerHeight ? y - size.height - 14 : y + 18;
    tip.style.transform = `translate(${Math.round(Math.max(4, left))}px, ${Math.round(Math.max(4, top))}px)`;
    tip.style.visibility = "visible";
  }

  hideTip() {
    this.tip.style.visibility = "hidden";
  }

  legend() {
    const bar = this.bar, shares = this.data.shares || {}, mask = this.model.mask;
    bar.replaceChildren();
    const chip = (color, text, share, title, edge) => {
      const made = element("span", "chip"), swatch = element("i");
      swatch.style.background = css(color);
      if (edge) swatch.style.boxShadow = `inset 0 0 0 2px ${css(edge)}`;
      made.append(swatch, element("span", "", text));
      if (share !== undefined && share !== null) made.append(element("b", "", percent(share)));
      made.title = title;
      bar.append(made);
    };
    const ink = this.ink;
    if (this.model.other) {
      const [one, two] = this.data.names;
      chip(ink.both, "kept by both", shares.both, "Computed by both.");
      chip(ink.first, `only ${one}`, shares.first, `Computed by ${one} alone.`);
      chip(ink.second, `only ${two}`, shares.second, `Computed by ${two} alone.`);
      chip(ink.dropped, "by none", shares.neither, "Computed by neither.");
      return;
    }
    const has = (kind) => mask.terms.some((term) => term.kind === kind);
    const window = mask.terms.find((term) => term.kind === "window");
    if (has("groups")) chip(ink.group, "kept by group", shares.group, "The query looks for a group that the key is in.");
    if (has("blocks")) chip(ink.group, "kept by block", shares.block, "The pair's block was chosen.");
    if (window && window.size >= mask.count) chip(ink.near, "kept: every pair", shares.near, "Dense attention computes all pairs.");
    else if (window) chip(ink.near, "nearby", shares.near, `Within the window of ${number(window.size)} tokens.`, ink.edge);
    if (has("sinks")) chip(ink.sink, "first tokens", shares.sink, "The first tokens stay visible to all.");
    if (shares.dropped !== 0) chip(ink.dropped, "dropped", shares.dropped, "Not computed.");
    if (this.model.lost) {
      chip(ink.lost, "of these, lost", shares.lost, "Dropped, though among the tokens that hold 90 % of the query's dense attention.");
    }
  }

  pooled() {
    const { step, exact } = this.cells, note = this.note;
    note.replaceChildren();
    if (step > 1) {
      note.append(element("span", "badge", "pooled view"),
        ` One cell is ${step} × ${step} pairs, coloured when any of them is kept; the stronger, the larger the share` +
        (exact ? "." : ` (judged by ${SAMPLES * SAMPLES} of its ${number(step * step)} pairs).`));
    } else note.append(element("span", "badge exact", "every pair"), " One cell is one pair of tokens.");
    if (this.data.said) note.append(" " + this.data.said);
  }
}
