// Colours of numbers, for the components that draw them. Comes first in one module with what uses it.

// Cividis: even to the eye, and the same to colour-blind ones.
const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"]
  .map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));

function cividis(share) {
  const at = Math.max(0, Math.min(1, share)) * (CIVIDIS.length - 1), low = Math.min(CIVIDIS.length - 2, Math.floor(at));
  return CIVIDIS[low].map((v, k) => Math.round(v + (CIVIDIS[low + 1][k] - v) * (at - low)));
}
