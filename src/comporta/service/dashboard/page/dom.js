// Helpers that change the document. Data from the service is only ever inserted as text or as an attribute
// value, never as markup. Unchanged values are not written again.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

export function element(name, className = "", ...children) {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

export function svgElement(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

export function markIcon(name) {
  const use = svgElement("use", { href: `#mark-${name}` });
  return svgElement("svg", { class: "mark", "aria-hidden": "true" }, use);
}

// Set the text of a node only if it changed, to spare screen readers and layout.
export function setText(node, value) {
  const text = String(value ?? "");
  if (node.textContent !== text) node.textContent = text;
}

export function setAttr(node, name, value) {
  const text = String(value);
  if (node.getAttribute(name) !== text) node.setAttribute(name, text);
}

export function setVisible(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

export function collectFields(root) {
  const nodes = {};
  for (const node of root.querySelectorAll("[data-f]")) nodes[node.dataset.f] = node;
  return nodes;
}

// Rows by key: existing rows are updated in place, so that they keep focus and scroll position; rows without an
// item are removed. `make` returns {node, update}.
export class KeyedRows {
  constructor(parent, make, maximum) {
    this.parent = parent;
    this.make = make;
    this.maximum = maximum;
    this.rows = new Map();
  }

  update(items, keyOf) {
    const shown = items.slice(0, this.maximum);
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
      place = this.placeRow(key, item, place);
    }
  }

  placeRow(key, item, place) {
    let row = this.rows.get(key);
    if (!row) {
      row = this.make(item);
      this.rows.set(key, row);
    }
    row.update(item);
    if (row.node === place) return place.nextElementSibling;
    const focused = row.node.contains(document.activeElement) ? document.activeElement : null;
    this.parent.insertBefore(row.node, place);
    focused?.focus({ preventScroll: true }); // a node that moves loses the focus
    return place;
  }
}

// A value that survives a reload, if the browser stores anything for this page.
export const stored = {
  get(key) {
    try {
      return localStorage.getItem(key);
    } catch {
      return null;
    }
  },
  set(key, value) {
    try {
      localStorage.setItem(key, value);
    } catch {
      // it then lasts for this visit only
    }
  },
};

// A hidden filter box is empty.
export function filterText(input) {
  return input.hidden || input.parentElement.hidden ? "" : input.value.trim().toLowerCase();
}

// A list of statistics {name, value, note, tone}, always the same names in the same order.
export class StatList {
  constructor(parent) {
    this.rows = new KeyedRows(parent, StatList.row, 24);
  }

  static row() {
    const value = element("span", "value");
    const note = element("span", "note");
    const name = element("dt");
    const node = element("div", "", name, element("dd", "", value, note));
    return {
      node,
      update(item) {
        setText(name, item.name);
        setText(value, item.value);
        setText(note, item.note);
        setAttr(node, "data-tone", item.tone ?? "");
      },
    };
  }

  update(items) {
    this.rows.update(items, (item) => item.name);
  }
}
