// What a mask holds, as pure functions: which pairs are kept and why, exact and pooled. No page, no canvas.
//
// A mask is a list of terms; a pair (query i, key j) is kept when first <= j <= i and any term takes it:
//   {kind: "window", size}            i - j < size
//   {kind: "sinks", count}            j - first < count
//   {kind: "groups", q, k}            the sets share a group; low and, where used, high words, packed
//   {kind: "blocks", size, columns, bits}   bits[floor(i / size) * columns + floor(j / size)], one byte a block
// A new kind of term is one entry in TERMS, which three functions below ask.

const WHY = { GROUP: 1, WINDOW: 2, SINK: 4, BLOCK: 8, PAIR: 16 };
const SAMPLES = 4;

function unpack(text, Kind) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Kind(bytes.buffer);
}

function unpackWords(packed, count) {
  const low = packed[0] ? unpack(packed[0], Uint32Array) : new Uint32Array(count);
  return { low, high: packed[1] ? unpack(packed[1], Uint32Array) : new Uint32Array(count) };
}

// Each kind: `open` decodes it; `keeps` is one pair; `any` is whether a rectangle of causal real pairs holds a kept one
// (rows [a, b) x columns [c, d), clipped to real keys, with at least one causal pair in it).
const TERMS = {
  window: {
    flag: WHY.WINDOW,
    open: (term) => term,
    keeps: (term, i, j) => i - j < term.size,
    any: (term, a, b, c, d) => Math.max(0, a - d + 1) < term.size,
  },
  sinks: {
    flag: WHY.SINK,
    open: (term, mask) => ({ ...term, end: mask.first + term.count }),
    keeps: (term, i, j) => j < term.end,
    any: (term, a, b, c) => c < term.end,
  },
  groups: {
    flag: WHY.GROUP,
    open: (term, mask) => ({ ...term, q: unpackWords(term.q, mask.count), k: unpackWords(term.k, mask.count) }),
    keeps: (term, i, j) => ((term.q.low[i] & term.k.low[j]) | (term.q.high[i] & term.k.high[j])) !== 0,
    // Where all pairs of a rectangle are causal, one of them shares a group exactly when the unions do.
    any(term, a, b, c, d, unions) {
      if (d - 1 <= a) return ((unions.ql & unions.kl) | (unions.qh & unions.kh)) !== 0;
      for (let i = a; i < b; i++) {
        for (let j = c; j < d && j <= i; j++) if (TERMS.groups.keeps(term, i, j)) return true;
      }
      return false;
    },
  },
  blocks: {
    flag: WHY.BLOCK,
    open: (term) => ({ ...term, bits: unpack(term.bits, Uint8Array) }),
    keeps: (term, i, j) => term.bits[Math.floor(i / term.size) * term.columns + Math.floor(j / term.size)] !== 0,
    any(term, a, b, c, d) {
      const s = term.size;
      for (let y = Math.floor(a / s); y * s < b; y++) {
        for (let x = Math.floor(c / s); x * s < d; x++) {
          // The part of the block that lies in the rectangle must reach the diagonal.
          if (term.bits[y * term.columns + x] && Math.max(c, x * s) < Math.min(b, (y + 1) * s)) return true;
        }
      }
      return false;
    },
  },
};

function openMask(data) {
  const mask = { count: data.count, first: data.first || 0, terms: [] };
  mask.terms = data.terms.map((term) => ({ ...TERMS[term.kind].open(term, mask), kind: term.kind }));
  return mask;
}

// Why a pair is kept: flags of WHY; 0 for a pair that is dropped or none at all.
function whyKept(mask, i, j) {
  if (j > i || j < mask.first || i < 0 || j < 0 || i >= mask.count) return 0;
  let flags = 0;
  for (const term of mask.terms) if (TERMS[term.kind].keeps(term, i, j)) flags |= TERMS[term.kind].flag;
  return flags;
}

function isPair(mask, i, j) {
  return j >= mask.first && j <= i && i < mask.count && j >= 0;
}

function sharedGroups(mask, i, j) {
  const found = [];
  for (const term of mask.terms) {
    if (term.kind !== "groups") continue;
    const low = term.q.low[i] & term.k.low[j], high = term.q.high[i] & term.k.high[j];
    for (let g = 0; g < 64; g++) if (((g < 32 ? low : high) >>> (g % 32)) & 1) found.push(g);
  }
  return found;
}

function groupsOf(set, i) {
  const found = [];
  for (let g = 0; g < 64; g++) if (((g < 32 ? set.low : set.high)[i] >>> (g % 32)) & 1) found.push(g);
  return found;
}

function groupTerm(mask) {
  return mask.terms.find((term) => term.kind === "groups") || null;
}

// How many keys a query sees, by the first reason that holds: near, first tokens, group or block.
function countRow(mask, i) {
  const found = { near: 0, sink: 0, group: 0, block: 0, all: 0, possible: Math.max(0, i + 1 - mask.first) };
  for (let j = mask.first; j <= i; j++) {
    const flags = whyKept(mask, i, j);
    if (!flags) continue;
    found.all++;
    if (flags & WHY.WINDOW) found.near++;
    else if (flags & WHY.SINK) found.sink++;
    else if (flags & WHY.GROUP) found.group++;
    else found.block++;
  }
  return found;
}

// Unions of the sets of `step` tokens each, from token `from` on.
function unionsOf(set, from, step, cells, first, count) {
  const low = new Uint32Array(cells), high = new Uint32Array(cells);
  for (let c = 0; c < cells; c++) {
    const end = Math.min(from + (c + 1) * step, count);
    for (let t = Math.max(from + c * step, first); t < end; t++) {
      low[c] |= set.low[t];
      high[c] |= set.high[t];
    }
  }
  return { low, high };
}

// Flags of rows x columns cells of step x step pairs from (i0, j0) on: the maximum over each cell's pairs, exactly.
// PAIR is set where a cell holds a causal pair of real tokens.
function poolMask(mask, i0, j0, step, rows, columns) {
  const out = new Uint8Array(rows * columns);
  const opened = mask.terms.map((term) => ({ term, kind: TERMS[term.kind] }));
  for (const each of opened) {
    if (each.term.kind !== "groups") continue;
    each.q = unionsOf(each.term.q, i0, step, rows, 0, mask.count);
    each.k = unionsOf(each.term.k, j0, step, columns, mask.first, mask.count);
  }
  const unions = { ql: 0, qh: 0, kl: 0, kh: 0 };
  for (let r = 0; r < rows; r++) {
    const a = i0 + r * step, b = Math.min(a + step, mask.count);
    for (let x = 0; x < columns; x++) {
      const c = Math.max(j0 + x * step, mask.first), d = Math.min(j0 + (x + 1) * step, mask.count);
      if (a >= b || c >= d) continue;
      if (c > b - 1) break;
      let flags = WHY.PAIR;
      for (const each of opened) {
        if (each.q) {
          unions.ql = each.q.low[r];
          unions.qh = each.q.high[r];
          unions.kl = each.k.low[x];
          unions.kh = each.k.high[x];
        }
        if (each.kind.any(each.term, a, b, c, d, unions)) flags |= each.kind.flag;
      }
      out[r * columns + x] = flags;
    }
  }
  return out;
}

// Shares of each cell's causal pairs, 0 to 255, in three planes. Of one mask: by group or block; by the window alone;
// by the first tokens. Of two: kept by both; by the first alone; by the second alone. All pairs are counted up to
// SAMPLES x SAMPLES a cell, else that many evenly spread ones: `exact` says which.
function shareMask(mask, other, i0, j0, step, rows, columns) {
  const planes = [0, 1, 2].map(() => new Uint8Array(rows * columns));
  const m = Math.min(step, SAMPLES);
  const at = Array.from({ length: m }, (_, t) => Math.floor(((t + 0.5) * step) / m));
  const kept = keeper(mask), keptToo = other ? keeper(other) : null;
  const n = mask.count, first = mask.first;
  for (let r = 0; r < rows; r++) {
    for (let x = 0; x < columns; x++) {
      let pairs = 0, p0 = 0, p1 = 0, p2 = 0;
      if (j0 + x * step > i0 + (r + 1) * step) break;
      for (let s = 0; s < m; s++) {
        const i = i0 + r * step + at[s];
        if (i >= n) break;
        for (let t = 0; t < m; t++) {
          const j = j0 + x * step + at[t];
          if (j > i) break;
          if (j < first) continue;
          pairs++;
          const flags = kept(i, j);
          if (keptToo) {
            const too = keptToo(i, j);
            if (flags && too) p0++;
            else if (flags) p1++;
            else if (too) p2++;
          } else if (flags & WHY.SINK) p2++;
          else if (flags & (WHY.GROUP | WHY.BLOCK)) p0++;
          else if (flags) p1++;
        }
      }
      if (!pairs) continue;
      const cell = r * columns + x, unit = 255 / pairs;
      planes[0][cell] = Math.round(p0 * unit);
      planes[1][cell] = Math.round(p1 * unit);
      planes[2][cell] = Math.round(p2 * unit);
    }
  }
  return { planes, exact: step <= SAMPLES };
}

// Kept over causal real pairs of one cell of step x step pairs, all of them counted.
function cellShare(mask, i0, j0, step) {
  let kept = 0, pairs = 0;
  for (let i = i0; i < Math.min(i0 + step, mask.count); i++) {
    for (let j = Math.max(j0, mask.first); j <= Math.min(i, j0 + step - 1); j++) {
      pairs++;
      if (whyKept(mask, i, j)) kept++;
    }
  }
  return pairs ? kept / pairs : 0;
}

// The same as whyKept for causal real pairs, without the walk over terms where they are the usual three.
function keeper(mask) {
  const usual = { window: 0, sinks: 0, groups: null };
  for (const term of mask.terms) {
    if (term.kind === "window") usual.window = Math.max(usual.window, term.size);
    else if (term.kind === "sinks") usual.sinks = Math.max(usual.sinks, term.end);
    else if (term.kind === "groups" && !usual.groups) usual.groups = term;
    else return (i, j) => whyKept(mask, i, j);
  }
  const { window, sinks, groups } = usual;
  if (!groups) return (i, j) => (i - j < window ? WHY.WINDOW : 0) | (j < sinks ? WHY.SINK : 0);
  const ql = groups.q.low, qh = groups.q.high, kl = groups.k.low, kh = groups.k.high;
  return (i, j) =>
    ((ql[i] & kl[j]) | (qh[i] & kh[j]) ? WHY.GROUP : 0) | (i - j < window ? WHY.WINDOW : 0) | (j < sinks ? WHY.SINK : 0);
}
