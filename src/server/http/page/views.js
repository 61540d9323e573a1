// The views of the page. Each has a title, an element, and `refresh`, which asks the server and updates the element.

import { read, withQuery } from "/api.js";
import * as actions from "/actions.js";
import { Figures, Pages, Table, element } from "/table.js";
import { amount, bytes, duration, labelText, nameKey, nameOf, nameText, plain, shown } from "/text.js";

const SHOWN_MAX = 10;

// Waits from so long on need attention.
const LONG_WAIT_S = 60;

// How far back refusals and failures need attention.
const RECENT_MS = 5 * 60_000;

function link(kind, object) {
  return element("a", { href: `#${withQuery("/name", { kind, ...nameOf(object) })}` }, shown(nameText(object)));
}

function nameColumn(kindOf) {
  return {
    title: "Name",
    state: (item) => nameKey(item),
    cell: (item) => link(kindOf(item), item),
  };
}

function number(title, key) {
  return { title, number: true, state: (item) => amount(item[key]) };
}

const usage = {
  title: "In use",
  number: true,
  state: (item) => (item.capacity === null || item.capacity === undefined ? amount(item.in_use) : `${amount(item.in_use)} of ${amount(item.capacity)}`),
};

// The states that need attention, each with a symbol, a word and a look.
function marksOf(item) {
  const hasCapacity = typeof item.capacity === "number";
  const found = [
    [item.removing, "✖ being removed", "bad"],
    [item.paused, "❚❚ paused", "bad"],
    [hasCapacity && item.in_use > item.capacity, "▲ above capacity", "bad"],
    [hasCapacity && item.in_use === item.capacity && item.capacity > 0, "■ full", "warn"],
    [item.slots_out?.length > 0, `◌ ${slotsText(item.slots_out ?? [])} out of service`, "warn"],
  ];
  return found.filter(([isSo]) => isSo).map(([, text, look]) => [text, look]);
}

// Slots in short: "slots 0–3, 7".
function slotsText(slots) {
  const ranges = [];
  for (const slot of slots) {
    const last = ranges.at(-1);
    if (last?.[1] === slot - 1) {
      last[1] = slot;
    } else {
      ranges.push([slot, slot]);
    }
  }
  const texts = ranges.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`));
  return `${slots.length === 1 ? "slot" : "slots"} ${texts.join(", ")}`;
}

function marksText(item) {
  return marksOf(item).map(([text]) => text).join(" ") || "in service";
}

const marks = {
  title: "State",
  state: marksText,
  cell: (item) => element("span", {}, ...marksOf(item).flatMap(([text, look]) => [element("span", { class: `mark ${look}` }, text), " "])),
};

function buttons(...made) {
  return element("span", { class: "buttons" }, ...made.filter(Boolean));
}

function button(label, accessible, onclick) {
  return element("button", { type: "button", "aria-label": accessible, onclick }, label);
}

// A choice of values, each with its text, which is part of the address of the view.
function choice(values, chosen, go) {
  const select = element("select", {}, ...values.map(([value, text]) => element("option", { value, selected: value === chosen }, text)));
  select.addEventListener("change", () => go(select.value));
  return select;
}

// A field for a search, which is part of the address of the view.
function searchForm(label, value, go) {
  const input = element("input", { type: "search", value, autocomplete: "off", spellcheck: "false" });
  const form = element("form", { class: "search", role: "search" }, element("label", {}, label, input), element("button", {}, "Search"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    go(input.value);
  });
  return form;
}

// Semaphores that are paused, above their capacity, or have slots out of service, and how many there are of each.
async function limitedSemaphores(prefix, limit) {
  const kinds = ["paused", "above_capacity", "out_of_service"];
  const lists = await Promise.all(kinds.map((list) => read("/api/v1/declared", { list, prefix, limit })));
  return {
    items: new Map(lists.flatMap((list) => list.items).map((item) => [`semaphore${nameKey(item)}`, { ...item, kind: "semaphore" }])),
    totals: Object.fromEntries(kinds.map((kind, index) => [kind, lists[index].total])),
  };
}

// Figures since the last update, as rates.
class Rates {
  update(time, totals) {
    const before = this.last;
    this.last = { time, totals };
    if (!before || time <= before.time) {
      return {};
    }
    const seconds = time - before.time;
    return Object.fromEntries(Object.entries(totals).map(([key, total]) => [key, Math.max(0, total - before.totals[key]) / seconds]));
  }
}

// By how much rows of totals grew within the last minutes, as far as the page was open.
class Growth {
  samples = [];

  update(rows) {
    const now = Date.now();
    this.samples.push({ now, totals: new Map(rows.map(({ name, value }) => [name, value])) });
    while (this.samples[0].now < now - RECENT_MS) {
      this.samples.shift();
    }
    const { totals } = this.samples[0];
    return rows.map(({ name, value }) => ({ name, value: value - (totals.get(name) ?? value) })).filter(({ value }) => value > 0);
  }
}

// They outlive a view.
const refusalsGrowth = new Growth();
const storeGrowth = new Growth();

function listed(rows) {
  return rows.map(({ name, value }) => `${amount(value)} ${name}`).join(", ");
}

function counted(count, one, many) {
  return `${amount(count)} ${count === 1 ? one : many}`;
}

// What needs attention: texts and their looks, the worst first.
function troublesOf(status, found) {
  const troubles = [];
  const add = (condition, text, look = "warn") => condition && troubles.push([text, look]);
  add(status.state !== "serving", `◐ This process does not serve clients itself: ${status.server ? "it is being stopped" : elsewhere(status)}`);
  add(status.cluster?.fenced, "✖ This node leads no longer, as far as it knows, and grants nothing", "bad");
  if (found) {
    const { totals, rows, refused, failed } = found;
    add(failed.length > 0, `✖ The store fails. In the last minutes: ${listed(failed)}`, "bad");
    add(totals.paused > 0, `❚❚ ${counted(totals.paused, "semaphore is", "semaphores are")} paused`, "bad");
    add(totals.above_capacity > 0, `▲ ${counted(totals.above_capacity, "semaphore is", "semaphores are")} above capacity`, "bad");
    add(totals.out_of_service > 0, `◌ ${counted(totals.out_of_service, "semaphore has", "semaphores have")} slots out of service`);
    add(refused.length > 0, `✖ Refused in the last minutes: ${listed(refused)}`, "bad");
    const longest = Math.max(0, ...rows.map((item) => item.longest ?? 0));
    const waiting = `${counted(status.server.waiting, "request waits", "requests wait")}, the longest for ${duration(longest)}`;
    add(longest >= LONG_WAIT_S, `◔ ${waiting}`);
    if (troubles.length === 0) {
      troubles.push([`✔ Healthy: nothing is paused, above capacity or out of service${status.server.waiting > 0 ? `; ${waiting}` : ", and no request waits"}`, "good"]);
    }
  }
  return troubles;
}

// Why a process has no tables, and which one has them.
export function elsewhere({ state, cluster }) {
  const leader = cluster?.leader;
  if (!leader) {
    return `it is in the state "${state}"${cluster ? ", and knows no leader of the cluster" : ""}`;
  }
  const addresses = cluster.nodes.find((node) => node.node === leader)?.addresses ?? [];
  const where = addresses.length > 0 ? ` (${addresses.join(" ")})` : "";
  return `node ${plain(leader)}${where} leads the cluster ${plain(cluster.name)}, and its status page has the tables`;
}

export function overview() {
  const troubles = element("ul", { class: "troubles", "aria-label": "What needs attention" });
  const figures = new Figures();
  const rates = new Rates();
  const since = element("p", { class: "quiet" });
  const table = new Table("Names with the longest waits, and semaphores that are paused, above capacity or have slots out of service", [
    { ...nameColumn((item) => item.kind), class: "wide" },
    marks,
    { ...usage, short: "in use" },
    { ...number("Waiting", "waiting"), short: "waiting" },
    { title: "Longest wait", short: "longest", number: true, state: (item) => duration(item.longest) },
    { title: "Kind", class: "spare", state: (item) => item.kind },
  ]);
  table.element.classList.add("compact");
  let shownTroubles = "";
  return {
    title: "Overview",
    isOfNode: true,
    element: element("div", {}, element("h1", {}, "Overview"), troubles, table.element, since, element("h2", {}, "Figures"), figures.element),
    async refresh(status) {
      if (status.problem) {
        return;
      }
      const found = status.server ? await attention(status) : null;
      const texts = troublesOf(status, found);
      if (JSON.stringify(texts) !== shownTroubles) {
        shownTroubles = JSON.stringify(texts);
        troubles.replaceChildren(...texts.map(([text, look]) => element("li", { class: look }, text)));
      }
      table.element.hidden = !found?.rows.length;
      table.update(found?.rows ?? [], (item) => item.kind + nameKey(item));
      since.textContent = found?.since ?? "";
      figures.update(overviewFigures(status, rates));
    },
  };
}

// The names that need attention, and what was refused and failed.
async function attention(status) {
  const [waiting, { items, totals }, refusals, store] = await Promise.all([
    read("/api/v1/names", { list: "waiting", limit: SHOWN_MAX }),
    limitedSemaphores("", SHOWN_MAX),
    read("/api/v1/refusals"),
    read("/api/v1/store"),
  ]);
  for (const item of waiting.items) {
    const key = item.kind + nameKey(item);
    items.set(key, { ...items.get(key), ...item });
  }
  const rows = [...items.values()];
  await Promise.all(rows.filter((item) => item.waiting > 0).map(async (item) => {
    item.longest = await longestWait(item, status.time);
  }));
  const urgency = (item) => (item.paused ? 2 : item.in_use > item.capacity ? 1 : 0);
  rows.sort((a, b) => urgency(b) - urgency(a) || (b.longest ?? -1) - (a.longest ?? -1));
  const refused = flat(refusals);
  const failures = [{ name: "batches that could not be committed", value: store.failures }];
  const all = [...refused, ...failures].filter(({ value }) => value > 0);
  return {
    rows,
    totals,
    refused: refusalsGrowth.update(refused),
    failed: storeGrowth.update(failures),
    since: all.length > 0 ? `Refused and failed since the start: ${listed(all)}.` : "Nothing was refused or failed since the start.",
  };
}

// How long the first request in a queue has waited; `null`: none waits any more.
async function longestWait(item, time) {
  try {
    const first = (await read("/api/v1/waiters", { kind: item.kind, ...nameOf(item), limit: 1 })).items[0];
    return first?.since === undefined || first.since === null ? null : time - first.since;
  } catch (error) {
    // The name is gone since.
    if (error.status === 404) {
      return null;
    }
    throw error;
  }
}

function overviewFigures(status, rates) {
  const about = [["Version", status.version], ["Up", duration(status.time - status.started)]];
  const server = status.server;
  if (!server) {
    return about;
  }
  const { counters, semaphores, memory } = server;
  const rate = rates.update(performance.now() / 1000, {
    acquires: counters.acquires + semaphores.acquires + server.granted,
    releases: counters.releases + semaphores.releases,
  });
  const perSecond = (value) => (value === undefined ? "–" : `${Math.round(value).toLocaleString("en")}/s`);
  return [
    ["Waiting requests", amount(server.waiting + server.sysv_waiting)],
    ["Grants", amount(server.grants)],
    ["Single flights", `${amount(server.single_flights)}, used by ${amount(server.told_done)} others`],
    ["Acquires and grants", perSecond(rate.acquires)],
    ["Plain releases", perSecond(rate.releases)],
    ["Leased sessions", amount(server.sessions)],
    ["Connections", amount(counters.connections + semaphores.connections)],
    ["Counters", amount(counters.names)],
    ["Semaphores", amount(semaphores.names)],
    memory.max
      ? ["Memory", `${bytes(memory.used)} of ${bytes(memory.max)}`, memory.used / memory.max]
      : ["Memory", bytes(memory.used)],
    ...about,
  ];
}

export function names(parameters, go) {
  const state = { prefix: "", kind: "", after: "", ...parameters };
  // Where the first page with entries was found.
  let found = state.after;
  const table = new Table("Names", [
    { title: "Kind", state: (item) => item.kind },
    nameColumn((item) => item.kind),
    marks,
    usage,
    number("Peak", "peak"),
    number("Waiting", "waiting"),
  ]);
  const first = button("First page", "First page", () => go("/names", { ...state, after: "" }));
  const next = button("Next", "Next page", () => go("/names", { ...state, after: next.value }));
  const text = element("span");
  const kinds = choice([["", "both"], ["counter", "counters"], ["semaphore", "semaphores"]], state.kind, (kind) => go("/names", { ...state, kind, after: "" }));
  const form = searchForm("Name begins with", state.prefix, (prefix) => go("/names", { ...state, prefix, after: "" }));
  form.append(element("label", {}, "Kind", kinds));
  return {
    title: "Names",
    element: element("div", {}, element("h1", {}, "Names"), form, table.element, element("nav", { class: "pages", "aria-label": "Pages" }, first, text, next)),
    async refresh() {
      const { prefix, kind } = state;
      const ask = (after) => read("/api/v1/names", { prefix, kind, after, limit: 100 });
      let page = await ask(found);
      // The names with this prefix may be far away.
      while (page.items.length === 0 && page.next !== null) {
        found = page.next;
        page = await ask(found);
      }
      const { items: limited } = await limitedSemaphores(prefix, 1000);
      const items = page.items.map((item) => ({ ...limited.get(item.kind + nameKey(item)), ...item }));
      table.update(items, (item) => item.kind + nameKey(item));
      const length = items.length;
      text.textContent = `${amount(length)} ${length === 1 ? "name" : "names"}${page.next === null ? "" : ", and perhaps more"}`;
      first.disabled = state.after === "";
      next.disabled = page.next === null;
      next.value = page.next ?? "";
    },
  };
}

function entryColumns(time, isQueue) {
  return [
    isQueue ? number("Place", "position") : { title: "Grant", state: (item) => item.grant ?? "held by a connection" },
    { title: "Client", state: (item) => `${item.address}${labelText(item)}`, cell: (item) => element("span", {}, shown(labelText(item)), " ", item.address ?? "not connected") },
    { title: "Session", number: true, state: (item) => item.session },
    number("Resources", "resources"),
    { title: isQueue ? "Waiting for" : "Held for", number: true, state: (item) => (item.since === null || item.since === undefined ? "–" : duration(time() - item.since)) },
  ];
}

export function name(parameters) {
  let time = 0;
  let shownName = parameters;
  const heading = element("h1", {}, shown(nameText(parameters)));
  const figures = new Figures();
  const acts = element("p", { class: "buttons change" });
  const holders = new Table("Holders", [
    ...entryColumns(() => time, false),
    { title: "Slots", state: (item) => (item.slots ?? []).join(", ") || "–" },
    { title: "Lease ends in", number: true, state: (item) => duration(item.ttl_left) },
    {
      title: "Actions",
      class: "change",
      state: (item) => item.grant ?? `session ${item.session}`,
      cell: (item) => buttons(
        item.grant
          ? button("Revoke", `Revoke grant ${item.grant}`, () => actions.revokeGrant(item, shownName))
          : button("Disconnect", `End session ${item.session}`, () => actions.revokeSession(item)),
      ),
    },
  ]);
  const queue = new Table("Waiting requests, in the order in which they are served", [
    ...entryColumns(() => time, true),
    {
      title: "Actions",
      class: "change",
      state: (item) => item.grant,
      cell: (item) => buttons(button("Cancel", `Cancel request ${item.grant}`, () => actions.cancel(item, shownName))),
    },
  ]);
  let actionsShown = "";
  return {
    title: plain(nameText(parameters)),
    element: element("div", {}, element("p", {}, element("a", { href: "#/names" }, "All names")), heading, figures.element, acts, element("h2", {}, "Holders"), holders.element, element("h2", {}, "Queue"), queue.element),
    async refresh(status) {
      const found = await read("/api/v1/name", { ...parameters, limit: 100 });
      time = status.time;
      const item = found.items[0];
      shownName = item;
      figures.update(nameFigures(item));
      const wanted = JSON.stringify(item.declared ?? null);
      if (wanted !== actionsShown) {
        actionsShown = wanted;
        acts.replaceChildren(...(item.declared ? declaredButtons({ ...item, ...item.declared }) : []));
      }
      holders.update(item.holders, (holder) => `${holder.grant}/${holder.session}`);
      holders.setCaption(`Holders: ${amount(item.holders.length)} of ${amount(item.holders_total)}`);
      queue.update(item.queue, (waiter) => `${waiter.position}/${waiter.session}`);
      queue.setCaption(`Waiting requests, in the order in which they are served: ${amount(item.queue.length)} of ${amount(item.waiting)}`);
    },
  };
}

function nameFigures(item) {
  const figures = [
    ["Kind", item.kind],
    item.capacity === null || item.capacity === undefined
      ? ["In use", amount(item.in_use)]
      : ["In use", `${amount(item.in_use)} of ${amount(item.capacity)}`, item.capacity > 0 ? item.in_use / item.capacity : 1],
    ["Waiting", amount(item.waiting)],
    ["Peak", amount(item.peak)],
  ];
  figures.unshift(["State", marksText({ ...item, ...item.declared }), undefined, marksOf({ ...item, ...item.declared })[0]?.[1]]);
  if (item.declared) {
    figures.push(["Label", plain(labelText(item.declared)) || "–"]);
  }
  return figures;
}

function declaredButtons(item) {
  const named = plain(nameText(item));
  return [
    item.paused
      ? button("Resume", `Resume ${named}`, () => actions.resume(item))
      : button("Pause", `Pause ${named}`, () => actions.pause(item)),
    item.configured ? null : button("Resize", `Resize ${named}`, () => actions.resize(item)),
    item.slots ? button("Slots", `Slots of ${named} in and out of service`, () => actions.slots(item, slotsText(item.slots_out))) : null,
    item.configured ? null : button("Remove", `Remove ${named}`, () => actions.remove(item)),
  ].filter(Boolean);
}

export function declared(parameters, go) {
  const state = { prefix: "", offset: 0, ...parameters };
  const table = new Table("Declared semaphores", [
    nameColumn(() => "semaphore"),
    marks,
    usage,
    number("Waiting", "waiting"),
    { title: "From", state: (item) => (item.configured ? "configuration" : "request") },
    { title: "Label", state: labelText, cell: (item) => shown(labelText(item)) },
    { title: "Actions", class: "change", state: (item) => JSON.stringify([item.generation, item.paused, item.capacity, item.slots_out]), cell: (item) => buttons(...declaredButtons(item)) },
  ]);
  const pages = new Pages((offset) => go("/declared", { ...state, offset }));
  const form = searchForm("Name begins with", state.prefix, (prefix) => go("/declared", { prefix }));
  return {
    title: "Declared semaphores",
    element: element("div", {}, element("h1", {}, "Declared semaphores"), form, table.element, pages.element),
    async refresh() {
      const page = await read("/api/v1/declared", { prefix: state.prefix, offset: state.offset, limit: 100 });
      table.update(page.items, nameKey);
      pages.update(page);
    },
  };
}

// How the entries of a page of sessions may be ordered: words, and what comes first.
const ORDERS = new Map([
  ["", ["by session", null]],
  ["age", ["oldest first", (item) => -item.age]],
  ["grants", ["most grants first", (item) => -item.grants]],
  ["waiting", ["most waiting requests first", (item) => -item.waiting]],
  ["lease", ["shortest lease first", (item) => item.ttl_left ?? Infinity]],
]);

export function sessions(parameters, go) {
  const state = { search: "", sort: "", offset: 0, ...parameters };
  const table = new Table("Sessions", [
    {
      title: "Client",
      class: "wide",
      state: (item) => `${item.address}${item.identity}${labelText(item)}${item.connected}`,
      cell: (item) => element("span", {}, shown(labelText(item)), " ", item.identity === null ? "" : shown(item.identity), " ", item.address ?? "", item.connected ? "" : " (not connected)"),
    },
    { title: "Kind", state: (item) => item.kind },
    { title: "Session", short: "no.", number: true, state: (item) => item.session },
    { title: "Age", class: "number spare", state: (item) => duration(item.age) },
    { ...number("Grants", "grants"), short: "grants" },
    { ...number("Waiting", "waiting"), short: "waiting" },
    { title: "Lease ends in", short: "lease", number: true, state: (item) => duration(item.ttl_left) },
    {
      title: "Actions",
      class: "change",
      state: (item) => `${item.kind}${item.session}`,
      cell: (item) => buttons(item.kind === "process" ? null : button("Revoke", `Revoke session ${item.session}`, () => actions.revokeSession(item))),
    },
  ]);
  table.element.classList.add("compact");
  const pages = new Pages((offset) => go("/sessions", { ...state, offset }));
  const form = searchForm("Label, address or identity contains", state.search, (search) => go("/sessions", { ...state, search, offset: 0 }));
  const order = choice([...ORDERS].map(([value, [text]]) => [value, text]), state.sort, (sort) => go("/sessions", { ...state, sort }));
  form.append(
    element("label", {}, "Order of this page", order),
    element("button", { type: "button", class: "change", onclick: () => actions.revokeClient() }, "Revoke a client"),
  );
  return {
    title: "Sessions",
    element: element("div", {}, element("h1", {}, "Sessions"), form, table.element, pages.element),
    async refresh() {
      const page = await read("/api/v1/sessions", { search: state.search, offset: state.offset, limit: 1000 });
      const [, rank] = ORDERS.get(state.sort) ?? ORDERS.get("");
      const items = rank ? page.items.toSorted((a, b) => rank(a) - rank(b)) : page.items;
      table.update(items, (item) => `${item.kind}${item.session}`);
      pages.update(page);
    },
  };
}

// Objects of figures as rows: "semaphores.connections" and so on.
function flat(object, before = "") {
  return Object.entries(object).flatMap(([key, value]) =>
    value !== null && typeof value === "object" ? flat(value, `${before}${key}.`) : [{ name: `${before}${key}`.replaceAll("_", " "), value }],
  );
}

export function server() {
  const columns = () => [
    { title: "What", state: (item) => item.name },
    { title: "Value", number: true, state: (item) => (typeof item.value === "number" ? amount(item.value) : String(item.value ?? "–")) },
  ];
  const parts = [
    ["Refusals since the start", "/api/v1/refusals", new Table("Refused requests and connections, by reason", columns())],
    ["Store", "/api/v1/store", new Table("Where durable state is kept", columns())],
  ];
  const cluster = new Table("This node of the cluster", columns());
  const nodes = new Table("Nodes of the cluster", [
    { title: "Node", state: (item) => item.node },
    { title: "State", state: (item) => (item.leads ? "leads" : item.eligible ? "stands by" : "relays") },
    { title: "Version", state: (item) => item.version },
    { title: "Last heartbeat", number: true, state: (item) => duration(item.heartbeat_age) },
    { title: "Relayed connections", number: true, state: (item) => amount(item.relayed_connections) },
    { title: "Addresses", state: (item) => item.addresses.join(" ") },
  ]);
  const sections = parts.map(([title, , table]) => [title, table]).concat([["Cluster", cluster], ["Nodes", nodes]]);
  return {
    title: "Server",
    isOfNode: true,
    element: element("div", {}, element("h1", {}, "Server"), ...sections.flatMap(([title, table]) => [element("h2", {}, title), table.element])),
    async refresh(status) {
      const { nodes: all = [], ...own } = (await read("/api/v1/cluster")) ?? {};
      cluster.update(flat(own), (item) => item.name);
      nodes.update(all, (item) => item.node);
      // A node that stands by has no other figures: the leader has them.
      if (status.server !== null) {
        await Promise.all(parts.map(async ([, path, table]) => table.update(flat((await read(path)) ?? {}), (item) => item.name)));
      }
    },
  };
}
