// The parts that several views share: columns of tables, states, buttons and forms.

import { read, withQuery } from "/api.js";
import { element } from "/table.js";
import { amount, duration, labelText, nameKey, nameOf, nameText, shown } from "/text.js";

function link(kind, object) {
  return element("a", { href: `#${withQuery("/name", { kind, ...nameOf(object) })}` }, shown(nameText(object)));
}

export function nameColumn(kindOf) {
  return {
    title: "Name",
    class: "wide",
    state: (item) => nameKey(item),
    cell: (item) => link(kindOf(item), item),
  };
}

export function number(title, key, short) {
  return { title, short, number: true, state: (item) => amount(item[key]) };
}

export const kind = { title: "Kind", class: "word", state: (item) => item.kind };

export const usage = {
  title: "In use",
  short: "in use",
  number: true,
  state: (item) => (item.capacity === null || item.capacity === undefined ? amount(item.in_use) : `${amount(item.in_use)} of ${amount(item.capacity)}`),
};

// Returns the states of a name that need attention, each as a text with a symbol, and its look.
export function marksOf(item) {
  const hasCapacity = typeof item.capacity === "number";
  const found = [
    [item.removing, "✖ being removed", "bad"],
    [item.paused, "❚❚ paused", "bad"],
    [item.capacity === 0, "✖ capacity 0", "bad"],
    [hasCapacity && item.in_use > item.capacity, "▲ above capacity", "bad"],
    [hasCapacity && item.in_use === item.capacity && item.capacity > 0, "■ full", "warn"],
    [item.slots_out?.length > 0, `◌ ${slotsText(item.slots_out ?? [])} out of service`, "warn"],
  ];
  return found.filter(([isSo]) => isSo).map(([, text, look]) => [text, look]);
}

// Slots in short: "0–3, 7".
function slotsOf(slots) {
  const ranges = [];
  for (const slot of slots) {
    const last = ranges.at(-1);
    if (last?.[1] === slot - 1) {
      last[1] = slot;
    } else {
      ranges.push([slot, slot]);
    }
  }
  return ranges.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ");
}

export function slotsText(slots) {
  return `${slots.length === 1 ? "slot" : "slots"} ${slotsOf(slots)}`;
}

export function marksText(item) {
  return marksOf(item).map(([text]) => text).join(" ") || "in service";
}

export const marks = {
  title: "State",
  state: marksText,
  cell: (item) => element("span", {}, ...marksOf(item).flatMap(([text, look]) => [element("span", { class: `mark ${look}` }, text), " "])),
};

export function buttons(...made) {
  return element("span", { class: "buttons" }, ...made.filter(Boolean));
}

export function button(label, accessible, onclick) {
  return element("button", { type: "button", "aria-label": accessible, onclick }, label);
}

// Makes a choice of values, each with its text. The chosen one is part of the address of the view.
export function choice(values, chosen, go) {
  const select = element("select", {}, ...values.map(([value, text]) => element("option", { value, selected: value === chosen }, text)));
  select.addEventListener("change", () => go(select.value));
  return select;
}

// Makes a field for a search, which is part of the address of the view.
export function searchForm(label, value, go) {
  const input = element("input", { type: "search", value, autocomplete: "off", spellcheck: "false" });
  const form = element("form", { class: "search", role: "search" }, element("label", {}, label, input), element("button", {}, "Search"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    go(input.value);
  });
  return form;
}

// Reads the semaphores that are paused, have no capacity, are above their capacity, or have slots out of service, and
// the number of each kind.
export async function limitedSemaphores(prefix, limit) {
  const kinds = ["paused", "no_capacity", "above_capacity", "out_of_service"];
  const lists = await Promise.all(kinds.map((list) => read("/api/v1/declared", { list, prefix, limit })));
  return {
    items: new Map(lists.flatMap((list) => list.items).map((item) => [`semaphore${nameKey(item)}`, { ...item, kind: "semaphore" }])),
    totals: Object.fromEntries(kinds.map((kind, index) => [kind, lists[index].total])),
  };
}

// Makes a link to the view of what a session or a client holds.
function heldLink(parameters, text) {
  return element("a", { href: `#${withQuery("/held", parameters)}` }, text);
}

export const session = {
  title: "Session",
  short: "no.",
  number: true,
  state: (item) => item.session,
  // A process of System V calls has no grants.
  cell: (item) => (item.kind === "process" ? item.session : heldLink({ session: item.session }, item.session)),
};

// The client of a session or of an entry: its label, its identity and its address.
export const client = {
  title: "Client",
  class: "wide line",
  state: (item) => JSON.stringify([labelText(item), item.identity, item.address, item.connected]),
  cell: (item) => {
    const isGone = item.connected === false || item.address === null;
    const parts = [
      labelText(item) && shown(labelText(item)),
      item.identity && heldLink({ client: item.identity }, shown(item.identity)),
      item.address && heldLink({ client: hostOf(item.address) }, item.address),
      isGone && "(not connected)",
    ];
    return element("span", {}, ...parts.filter(Boolean).flatMap((part) => [part, " "]));
  },
};

// Returns the host of an address with a port.
function hostOf(address) {
  return address.replace(/:\d+$/, "").replace(/^\[(.*)\]$/, "$1");
}

// The columns of a holder or a waiter. `time` returns the time of the server.
export function entryColumns(time, since) {
  return [
    client,
    session,
    number("Resources", "resources", "resources"),
    { title: since, short: "for", number: true, state: (item) => (item.since === null || item.since === undefined ? "–" : duration(time() - item.since)) },
  ];
}

// The further columns of holders.
export const holding = [
  { title: "Slots", short: "slots", state: (item) => slotsOf(item.slots ?? []) },
  { title: "Lease ends in", short: "lease", number: true, state: (item) => duration(item.ttl_left) },
];

// Turns objects of figures into rows: "semaphores.connections" and so on.
export function flat(object, before = "") {
  return Object.entries(object).flatMap(([key, value]) =>
    value !== null && typeof value === "object" ? flat(value, `${before}${key}.`) : [{ name: `${before}${key}`.replaceAll("_", " "), value }],
  );
}
