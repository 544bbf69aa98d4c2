// The few ways in which this page touches the document. What comes from the service is only ever put in as
// text or as a value of an attribute, never as markup; what does not change is not written again.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

export function element(name, className = "", ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

export function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function mark(name) {
  const use = shape("use", { href: `#mark-${name}` });
  return shape("svg", { class: "mark", "aria-hidden": "true" }, use);
}

// A node that is written to only where the words are new: screen readers and layout are spared the rest.
export function say(node, words) {
  const text = String(words ?? "");
  if (node.textContent !== text) node.textContent = text;
}

export function attribute(node, name, value) {
  const text = String(value);
  if (node.getAttribute(name) !== text) node.setAttribute(name, text);
}

export function show(node, wanted) {
  if (node.hidden === wanted) node.hidden = !wanted;
}

export function fields(root) {
  const found = {};
  for (const node of root.querySelectorAll("[data-f]")) found[node.dataset.f] = node;
  return found;
}

// Rows by key: those that stay are changed where they are (focus and scrolling stay with them), those that
// are gone are removed, so there are never more than there are items. `make` gives {node, update}.
export class Rows {
  constructor(parent, make, most) {
    this.parent = parent;
    this.make = make;
    this.most = most;
    this.rows = new Map();
  }

  update(items, keyOf) {
    const shown = items.slice(0, this.most);
    const keys = new Set(shown.map(keyOf));
    for (const [key, row] of this.rows) {
      if (!keys.has(key)) {
        row.node.remove();
        this.rows.delete(key);
      }
    }
    let place = this.parent.firstElementChild;
    const done = new Set();
    for (const item of shown) {
      const key = keyOf(item);
      if (done.has(key)) continue;
      done.add(key);
      place = this.placed(key, item, place);
    }
  }

  placed(key, item, place) {
    let row = this.rows.get(key);
    if (!row) {
      row = this.make(item);
      this.rows.set(key, row);
    }
    row.update(item);
    if (row.node === place) return place.nextElementSibling;
    this.parent.insertBefore(row.node, place);
    return place;
  }
}

// A list of names with values: [[name, value, note], ...], always the same names in the same order.
export class Figures {
  constructor(parent) {
    this.rows = new Rows(parent, Figures.row, 24);
  }

  static row(item) {
    const value = element("span", "value");
    const note = element("span", "note");
    const name = element("dt");
    const node = element("div", "", name, element("dd", "", value, note));
    return {
      node,
      update(now) {
        say(name, now.name);
        say(value, now.value);
        say(note, now.note);
        attribute(node, "data-tone", now.tone ?? "");
      },
    };
  }

  update(items) {
    this.rows.update(items, (item) => item.name);
  }
}
