// The Save menu beside a figure. Pictures are made here, from what is drawn; pages and tables are asked for and made by
// the app only then. Comes after picture.js, in one module with it.

const NOTES = { png: "picture, 2×", svg: "picture, sharp", html: "works offline", csv: "its numbers" };
const REVOKE_AFTER_MS = 60000;

function hand(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), REVOKE_AFTER_MS);
}

function isDark(color) {
  const [r, g, b] = (color.match(/[\d.]+/g) || [255, 255, 255]).map(Number);
  return 0.299 * r + 0.587 * g + 0.114 * b < 128;
}

class Save {
  constructor(root) {
    this.root = root;
    this.button = root.querySelector("button");
    this.menu = root.querySelector(".menu");
    this.said = root.querySelector(".said");
    this.serial = null;
    this.menu.addEventListener("toggle", (event) => {
      this.button.setAttribute("aria-expanded", String(event.newState === "open"));
      if (event.newState === "open") this.place();
    });
    this.button.addEventListener("click", () => this.menu.togglePopover());
    this.menu.addEventListener("keydown", (event) => this.move(event));
  }

  place() {
    const at = this.button.getBoundingClientRect(), size = this.menu.getBoundingClientRect();
    const under = at.bottom + 4 + size.height < window.innerHeight;
    this.menu.style.top = `${under ? at.bottom + 4 : Math.max(4, at.top - size.height - 4)}px`;
    this.menu.style.left = `${Math.max(4, at.right - size.width)}px`;
    this.menu.querySelector("button").focus();
  }

  move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const items = [...this.menu.children];
    items[(items.indexOf(this.menu.getRootNode().activeElement) + step + items.length) % items.length].focus();
  }

  update({ data, setTriggerValue }) {
    this.data = data;
    this.ask = setTriggerValue;
    const kinds = data.kinds.join();
    if (kinds !== this.kinds) {
      this.kinds = kinds;
      this.menu.replaceChildren(...data.kinds.map((kind) => {
        const item = document.createElement("button"), note = document.createElement("small");
        item.role = "menuitem";
        note.textContent = NOTES[kind] || "";
        item.append(kind.toUpperCase(), note);
        item.addEventListener("click", () => this.pick(kind));
        return item;
      }));
    }
    if (data.file && data.file.serial !== this.serial) {
      this.serial = data.file.serial;
      this.busy(false);
      if (data.file.error) this.say(data.file.error);
      else hand(new Blob([data.file.text], { type: data.file.mime }), `${data.name}.${data.file.kind}`);
    }
  }

  async pick(kind) {
    this.menu.hidePopover();
    this.busy(true);
    const background = getComputedStyle(this.root).getPropertyValue("--st-background-color").trim() || "#ffffff";
    if (kind === "html" || kind === "csv") {
      this.ask("wanted", `${kind} ${isDark(this.seen(background)) ? "dark" : "light"}`);
      return;
    }
    try {
      const own = this.root.getRootNode().host, area = own.closest(`.${this.data.area}`);
      const svg = await pictureOf(area, own, background);
      hand(kind === "svg" ? new Blob([svg], { type: "image/svg+xml" }) : await pngOf(svg), `${this.data.name}.${kind}`);
    } catch (error) {
      this.say(`The picture could not be made: ${error.message}`);
    }
    this.busy(false);
  }

  // A colour as the browser resolves it, so that its lightness can be told.
  seen(color) {
    this.said.style.backgroundColor = color;
    const found = getComputedStyle(this.said).backgroundColor;
    this.said.style.backgroundColor = "";
    return found;
  }

  busy(on) {
    this.button.setAttribute("aria-busy", String(on));
    if (on) this.said.textContent = "";
  }

  say(text) {
    this.said.textContent = text;
  }
}

export default function (component) {
  const root = component.parentElement.querySelector(".save");
  if (!root.save) root.save = new Save(root);
  root.save.update(component);
}
