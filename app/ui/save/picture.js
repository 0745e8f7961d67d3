// A picture of what is drawn, as SVG text: a Plotly figure from its own SVG layers, anything else as embedded HTML.

const SVG = "http://www.w3.org/2000/svg";
const XHTML = "http://www.w3.org/1999/xhtml";
const MAX_PIXELS = 48e6, MAX_SIDE = 16000;

function base64(buffer) {
  const bytes = new Uint8Array(buffer);
  let text = "";
  for (let i = 0; i < bytes.length; i += 0x8000) text += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
  return btoa(text);
}

// A picture shows no font of the page, so the font travels in it.
async function fontFace(family) {
  const wanted = family.split(",")[0].replace(/["']/g, "").trim();
  for (const sheet of document.styleSheets) {
    let rules = [];
    try { rules = sheet.cssRules; } catch (error) { continue; }
    for (const rule of rules) {
      if (!(rule instanceof CSSFontFaceRule) || /italic/.test(rule.style.getPropertyValue("font-style"))) continue;
      if (rule.style.getPropertyValue("font-family").replace(/["']/g, "").trim() !== wanted) continue;
      const from = /url\(["']?([^"')]+)/.exec(rule.style.getPropertyValue("src"));
      if (!from) continue;
      try {
        const answer = await fetch(new URL(from[1], sheet.href || document.baseURI));
        const data = base64(await answer.arrayBuffer());
        return `@font-face{font-family:"${wanted}";font-weight:200 900;src:url(data:font/woff2;base64,${data}) format("woff2")}`;
      } catch (error) { return ""; }
    }
  }
  return "";
}

function svgElement(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function finished(svg) {
  const text = new XMLSerializer().serializeToString(svg);
  return text.replace(/url\((?:&quot;|["'])?[^)"'#]*#([^)"'&]+)(?:&quot;|["'])?\)/g, "url(#$1)");
}

async function plotlySvg(plot, background) {
  const layers = [...plot.querySelectorAll("svg.main-svg")];
  const box = layers[0].getBoundingClientRect();
  const width = Math.round(box.width), height = Math.round(box.height);
  const svg = svgElement("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` });
  const family = getComputedStyle(plot.querySelector("text") || plot).fontFamily;
  const style = svgElement("style", {});
  style.textContent = `${await fontFace(family)}.crisp{shape-rendering:crispEdges}`;
  svg.append(style, svgElement("rect", { width, height, fill: background }));
  layers.forEach((layer, i) => {
    for (const child of layer.children) svg.append(child.cloneNode(true));
    if (i) return;
    for (const canvas of plot.querySelectorAll(".gl-canvas")) {
      if (!canvas.width || !canvas.height) continue;
      svg.append(svgElement("image", { width, height, href: canvas.toDataURL() }));
    }
  });
  for (const text of svg.querySelectorAll("text")) if (!text.style.fontFamily) text.style.fontFamily = family;
  return finished(svg);
}

function variables(css, root) {
  const style = getComputedStyle(root), names = new Set(css.match(/--st-[\w-]+/g) || []);
  return [...names].map((name) => `${name}:${style.getPropertyValue(name)}`).join(";");
}

async function htmlSvg(root, css, background) {
  const copy = root.cloneNode(true);
  const from = [...root.querySelectorAll("canvas")];
  [...copy.querySelectorAll("canvas")].forEach((canvas, i) => {
    const image = document.createElement("img");
    image.src = from[i].toDataURL();
    image.className = canvas.className;
    image.setAttribute("style", `${canvas.getAttribute("style") || ""};width:${from[i].clientWidth}px;height:${from[i].clientHeight}px`);
    canvas.replaceWith(image);
  });
  copy.classList.add("saving");
  // Measured where its styles hold, since what scrolls on the page is whole in the picture.
  const width = Math.ceil(root.getBoundingClientRect().width);
  copy.style.cssText += `;position:absolute;visibility:hidden;width:${width}px`;
  root.parentNode.append(copy);
  // What is not seen has no place in the file either, hints for the mouse among it.
  for (const part of copy.querySelectorAll("*")) if (getComputedStyle(part).display === "none") part.remove();
  const height = Math.ceil(copy.getBoundingClientRect().height);
  copy.remove();
  copy.style.position = copy.style.visibility = "";
  const computed = getComputedStyle(root), pad = 16;
  const outside = document.createElementNS(XHTML, "div");
  outside.className = "host";
  outside.setAttribute("style", `${variables(css, root)};box-sizing:border-box;padding:${pad}px;background:${background};` +
    `color:${computed.color};font-family:${computed.fontFamily};font-size:${computed.fontSize};line-height:${computed.lineHeight}`);
  const style = document.createElementNS(XHTML, "style");
  style.textContent = (await fontFace(computed.fontFamily)) + css.replace(/:host/g, ".host");
  outside.append(style, copy);
  const full = { width: width + 2 * pad, height: height + 2 * pad };
  const svg = svgElement("svg", { xmlns: SVG, ...full, viewBox: `0 0 ${full.width} ${full.height}` });
  const foreign = svgElement("foreignObject", full);
  foreign.append(outside);
  svg.append(svgElement("rect", { ...full, fill: background }), foreign);
  return finished(svg);
}

// The picture within an area of the page; `own` is the shadow host of the menu itself.
async function pictureOf(area, own, background) {
  const plot = area.querySelector(".js-plotly-plot");
  if (plot) return plotlySvg(plot, background);
  for (const host of area.querySelectorAll("*")) {
    if (!host.shadowRoot || host === own) continue;
    const shadow = host.shadowRoot;
    const marked = [...shadow.querySelectorAll("*")].find((e) => typeof e.saveSvg === "function");
    if (marked) return marked.saveSvg(background);
    const root = shadow.querySelector(".fl");
    if (!root) continue;
    const sheets = [...shadow.querySelectorAll("style")].map((e) => e.textContent);
    for (const sheet of shadow.adoptedStyleSheets || []) sheets.push([...sheet.cssRules].map((r) => r.cssText).join("\n"));
    return htmlSvg(root, sheets.join("\n"), background);
  }
  throw new Error("There is no picture here yet.");
}

async function pngOf(svg) {
  const image = new Image();
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(svg);
  await image.decode();
  const { width, height } = image;
  const scale = Math.min(2, MAX_SIDE / Math.max(width, height), Math.sqrt(MAX_PIXELS / (width * height)));
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done, fail) => canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("The picture is too large."))), "image/png"));
}
