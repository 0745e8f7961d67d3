// Panels alone. Comes after panels.js, in one module with it.

export default function (component) {
  const { data, parentElement } = component;
  const root = parentElement.querySelector(".fp");
  if (!root.panels) {
    root.panels = new Panels(root.querySelector(".panels"), root.querySelector(".tip"));
    const draw = () => root.clientWidth && root.panels.data && root.panels.draw(root.clientWidth, inkOf(root));
    new ResizeObserver(draw).observe(root);
    onTheme(root, draw);
    root.redraw = draw;
  }
  root.panels.update(data);
  root.redraw();
}
