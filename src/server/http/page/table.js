// Tables and lists of figures, which are updated in place: a row keeps its element while its key stays, so the keyboard
// focus and the place of a screen reader stay as well.

import { Chart } from "/chart.js";

// Makes an element with these children: elements or texts.
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") {
      made.addEventListener("click", value);
    } else if (value !== undefined && value !== false) {
      made.setAttribute(name, value === true ? "" : value);
    }
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Replaces the content of an element. If the focus was in it, the first new link or button gets the focus.
export function fill(holder, content) {
  const isFocused = holder.contains(document.activeElement);
  holder.replaceChildren(...content);
  if (isFocused) {
    holder.querySelector("a, button")?.focus({ preventScroll: true });
  }
}

function classOf(column) {
  return column.class ?? (column.number ? "number" : undefined);
}

// A table. Each column has a title, and `cell` makes the content of its cells. On a phone, a row is a few lines: the cell with the
// class "wide" and the buttons, then the other cells, each after its `short` title if it has one.
export class Table {
  constructor(caption, columns) {
    this.columns = columns;
    this.caption = element("caption", {}, caption);
    const heads = columns.map((column) => element("th", { scope: "col", class: classOf(column) }, column.title));
    this.body = element("tbody");
    this.rows = new Map();
    this.empty = element("p", { class: "quiet", hidden: true }, "There are none.");
    const table = element("table", {}, this.caption, element("thead", {}, element("tr", {}, ...heads)), this.body);
    this.element = element("div", {}, table, this.empty);
  }

  setCaption(text) {
    if (this.caption.textContent !== text) {
      this.caption.textContent = text;
    }
  }

  update(items, keyOf) {
    const before = this.rows;
    const focused = document.activeElement;
    this.rows = new Map();
    let last = null;
    for (const item of items) {
      const key = keyOf(item);
      const row = before.get(key) ?? this.makeRow();
      before.delete(key);
      this.fill(row, item);
      this.rows.set(key, row);
      const next = last ? last.nextSibling : this.body.firstChild;
      if (row.element !== next) {
        this.body.insertBefore(row.element, next);
      }
      last = row.element;
    }
    for (const row of before.values()) {
      row.element.remove();
    }
    // A row that moves loses the focus.
    if (focused !== document.activeElement && this.body.contains(focused)) {
      focused.focus({ preventScroll: true });
    }
    this.empty.hidden = items.length > 0;
  }

  makeRow() {
    const cells = this.columns.map((column) =>
      element("td", { "data-short": column.short, class: classOf(column) }),
    );
    return { element: element("tr", {}, ...cells), cells, shown: [] };
  }

  // Replaces the content of cells that changed. Cells with buttons keep their elements while `state` returns the same.
  fill(row, item) {
    this.columns.forEach((column, index) => {
      const state = String(column.state(item));
      if (row.shown[index] !== state) {
        row.shown[index] = state;
        fill(row.cells[index], [column.cell ? column.cell(item) : state]);
      }
    });
  }
}

// Figures with their names.
export class Figures {
  constructor() {
    this.element = element("dl", { class: "figures" });
    this.shown = new Map();
  }

  // Each figure has a name and a text, and may have a look, a part from 0 to 1 for a bar, or a value for a chart that is as
  // high as `most`.
  update(figures) {
    for (const { name, text, look, part, value, most } of figures) {
      let entry = this.shown.get(name);
      if (!entry) {
        entry = {
          value: element("span"),
          bar: part === undefined ? null : element("progress", { max: "1", "aria-label": name }),
          chart: value === undefined ? null : new Chart(name),
        };
        this.shown.set(name, entry);
        this.element.append(element("div", {}, element("dt", {}, name), element("dd", {}, entry.value, entry.bar, entry.chart?.element)));
      }
      entry.chart?.add(value, most);
      if (entry.value.textContent !== text) {
        entry.value.textContent = text;
      }
      entry.value.className = look ?? "";
      if (entry.bar) {
        entry.bar.value = part ?? 0;
      }
    }
  }
}

// Buttons to the pages of a list.
export class Pages {
  constructor(onOffset) {
    this.before = element("button", { type: "button", onclick: () => onOffset(Math.max(0, this.offset - this.limit)) }, "Previous");
    this.after = element("button", { type: "button", onclick: () => onOffset(this.next) }, "Next");
    this.text = element("span");
    this.element = element("nav", { class: "pages", "aria-label": "Pages" }, this.before, this.text, this.after);
  }

  update({ offset, limit, next, total, items }) {
    this.offset = offset;
    this.limit = limit;
    this.next = next;
    this.before.disabled = offset === 0;
    this.after.disabled = next === null;
    const last = offset + items.length;
    const number = (value) => value.toLocaleString("en");
    const text = items.length === 0 ? `none of ${number(total)}` : `${number(offset + 1)} to ${number(last)} of ${number(total)}`;
    if (this.text.textContent !== text) {
      this.text.textContent = text;
    }
  }
}
