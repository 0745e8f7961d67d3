// What both canvases of the page share: decoding, colours, numbers in words, and a tooltip. Token text is only ever text.

function unpack(text, Kind) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Kind(bytes.buffer);
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function percent(share) {
  const value = 100 * share;
  return (value === 0 ? "0" : value >= 99.95 ? "100" : value < 0.001 ? "< 0.001" : value.toPrecision(3)) + " %";
}

function short(text, most) {
  const shown = text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/^ (?=\S)/, "");
  const letters = [...(shown.trim() ? shown : shown.replace(/ /g, "␣"))];
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : letters.join("");
}

function number(value) {
  return value.toLocaleString("en-US");
}

// A canvas of so many CSS pixels, sharp on every screen, cleared.
function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  const ctx = canvas.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  return ctx;
}

function inkOf(root) {
  const style = getComputedStyle(root), read = (name) => style.getPropertyValue(name).trim();
  return {
    text: style.color, paper: style.backgroundColor, kept: read("--kept"), own: read("--own"), lost: read("--lost"),
    dropped: read("--dropped"),
  };
}

// Rows of [class, text] pairs beside the pointer.
function showTip(tip, rows, x, y) {
  tip.replaceChildren(...rows.map((parts) => {
    const row = element("span", "row");
    for (const [className, text] of parts) row.append(element(className === "b" ? "b" : "span", className, text));
    return row;
  }));
  const size = tip.getBoundingClientRect();
  const left = x + 16 + size.width > window.innerWidth - 8 ? x - size.width - 14 : x + 16;
  const top = y + 18 + size.height > window.innerHeight ? y - size.height - 14 : y + 18;
  tip.style.transform = `translate(${Math.round(Math.max(4, left))}px, ${Math.round(Math.max(4, top))}px)`;
  tip.style.visibility = "visible";
}

function hideTip(tip) {
  tip.style.visibility = "hidden";
}

// The theme reaches a component as CSS variables alone: a colour that changes ends this transition.
function onTheme(root, redraw) {
  root.addEventListener("transitionend", (event) => {
    if (event.target === root && event.propertyName === "background-color") redraw();
  });
}

const MARK = { KEPT: 1, SINK: 2, OWN: 4 };

// Blocks of one square grid: cividis by share, kept ones whole and outlined, dropped ones small and dim. `left` and `top`
// place it, `cell` is a block's side in pixels. `value(b)` is the colour's share, 0 to 1, NaN for none.
function paintBlocks(ctx, { n, left, top, cell, value, marks }, ink) {
  const roomy = cell >= 9, inset = roomy ? Math.max(2, cell * 0.17) : 0;
  for (let i = 0; i < n; i++) {
    for (let j = 0; j <= i; j++) {
      const at = i * n + j, x = left + j * cell, y = top + i * cell, kept = marks[at] & MARK.KEPT, share = value(at);
      const gap = kept ? (cell > 5 ? 0.5 : 0) : inset;
      ctx.globalAlpha = kept ? 1 : roomy ? 0.75 : 0.45;
      ctx.fillStyle = Number.isNaN(share) ? ink.own : `rgb(${cividis(share).join(" ")})`;
      if (Number.isNaN(share)) ctx.globalAlpha = 0.3;
      ctx.fillRect(x + gap, y + gap, cell - 2 * gap, cell - 2 * gap);
      ctx.globalAlpha = 1;
      if (!kept) continue;
      const forced = marks[at] & (MARK.SINK | MARK.OWN), line = cell >= 14 ? 2.5 : cell >= 6 ? 1.5 : 1;
      ctx.strokeStyle = forced ? ink.own : ink.kept;
      ctx.lineWidth = line;
      ctx.setLineDash(forced && cell >= 9 ? [Math.max(2, cell / 6), Math.max(2, cell / 9)] : []);
      ctx.strokeRect(x + line / 2 + 0.5, y + line / 2 + 0.5, cell - line - 1, cell - line - 1);
      ctx.setLineDash([]);
    }
  }
}

// A ring round one block that is seen on every colour.
function ring(ctx, x, y, wide, high, ink, width = 2) {
  for (const [color, line] of [[ink.paper, width + 3], [ink.text, width]]) {
    ctx.strokeStyle = color;
    ctx.lineWidth = line;
    ctx.strokeRect(x, y, wide, high);
  }
}

function axisText(ctx, ink, text, x, y, { align = "center", turn = false, alpha = 0.7 } = {}) {
  ctx.save();
  ctx.globalAlpha = alpha;
  ctx.fillStyle = ink.text;
  ctx.font = "12px sans-serif";
  ctx.textAlign = align;
  ctx.textBaseline = "middle";
  ctx.translate(x, y);
  if (turn) ctx.rotate(-Math.PI / 2);
  ctx.fillText(text, 0, 0);
  ctx.restore();
}
