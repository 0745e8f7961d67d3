// What a button far below selects comes into view; what is in view stays where it is.
function bringIntoView(root, first) {
  if (!window.location.protocol.startsWith("http")) return;
  requestAnimationFrame(() => {
    const { top } = root.getBoundingClientRect();
    if (top > -60 && (first || top < window.innerHeight - 160)) return;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    root.style.scrollMarginTop = "4.5rem";
    root.scrollIntoView({ block: "start", behavior: calm ? "auto" : "smooth" });
  });
}
