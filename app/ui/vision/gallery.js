// Thumbnails by class in one row that scrolls. Only the strip itself is a tab stop; arrow keys move within.

class Gallery {
  constructor(root) {
    this.root = root;
    root.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) this.send("picked", button.place);
    });
    root.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e6, End: 1e6 }[event.key], at = this.buttons.indexOf(event.target);
      if (step === undefined || at < 0) return;
      this.buttons[Math.max(0, Math.min(this.buttons.length - 1, at + step))].focus();
      event.preventDefault();
    });
  }

  update(data) {
    if (this.pixels !== data.pixels) {
      this.pixels = data.pixels;
      this.build(data);
    }
    this.buttons.forEach((button, i) => {
      button.setAttribute("aria-selected", String(i === data.picked));
      button.tabIndex = i === (data.picked ?? 0) ? 0 : -1;
    });
    const shown = this.buttons[data.picked];
    if (shown && this.seen !== data.picked) {
      const left = shown.offsetLeft - this.root.offsetLeft, { scrollLeft, clientWidth } = this.root;
      if (left < scrollLeft || left + 60 > scrollLeft + clientWidth) this.root.scrollLeft = left - clientWidth / 2;
    }
    this.seen = data.picked;
  }

  build({ pixels, side, labels, names }) {
    const raw = Uint8Array.from(atob(pixels), (c) => c.charCodeAt(0)), area = side * side, boxes = new Map();
    this.buttons = labels.map((label, i) => {
      if (!boxes.has(label)) {
        const box = document.createElement("div"), title = document.createElement("span"), thumbs = document.createElement("div");
        box.className = "class";
        thumbs.className = "thumbs";
        title.textContent = names[label];
        box.append(title, thumbs);
        boxes.set(label, { box, thumbs });
      }
      const button = document.createElement("button"), canvas = document.createElement("canvas"), image = new ImageData(side, side);
      button.type = "button";
      button.place = i;
      button.title = names[label];
      button.setAttribute("role", "option");
      button.setAttribute("aria-label", `${names[label]}, image ${i + 1}`);
      canvas.width = canvas.height = side;
      for (let p = 0; p < area; p++) {
        image.data.fill(raw[i * area + p], 4 * p, 4 * p + 3);
        image.data[4 * p + 3] = 255;
      }
      canvas.getContext("2d").putImageData(image, 0, 0);
      button.append(canvas);
      boxes.get(label).thumbs.append(button);
      return button;
    });
    this.root.replaceChildren(...[...boxes.values()].map((entry) => entry.box));
  }
}

export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".fg2");
  if (!root.gallery) root.gallery = new Gallery(root);
  root.gallery.send = setTriggerValue;
  root.gallery.update(data);
}
