// The views of the page. Each has a title, an element, and `refresh`, which asks the server and updates the element.

import { read, withQuery } from "/api.js";
import * as actions from "/actions.js";
import { Figures, Pages, Table, element } from "/table.js";
import { amount, bytes, duration, labelText, nameKey, nameOf, nameText, plain, shown } from "/text.js";

const SHOWN_MAX = 10;

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

function buttons(...made) {
  return element("span", { class: "buttons" }, ...made.filter(Boolean));
}

function button(label, accessible, onclick) {
  return element("button", { type: "button", "aria-label": accessible, onclick }, label);
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

export function overview() {
  const figures = new Figures();
  const rates = new Rates();
  const contended = new Table("Names with the longest waits", [
    { title: "Kind", state: (item) => item.kind },
    nameColumn((item) => item.kind),
    usage,
    number("Waiting", "waiting"),
    { title: "Longest wait", number: true, state: (item) => duration(item.longest) },
  ]);
  const limited = new Table("Semaphores that are paused, above their capacity, or have slots out of service", [
    nameColumn(() => "semaphore"),
    usage,
    number("Waiting", "waiting"),
    { title: "State", state: stateOf },
  ]);
  return {
    title: "Overview",
    element: element("div", {}, element("h1", {}, "Overview"), figures.element, element("h2", {}, "Contention"), contended.element, element("h2", {}, "Service"), limited.element),
    async refresh() {
      const status = await read("/api/v1/status");
      figures.update(overviewFigures(status, rates));
      if (!status.server) {
        return status;
      }
      const [{ items }, ...lists] = await Promise.all([
        read("/api/v1/names", { list: "waiting", limit: SHOWN_MAX }),
        ...["above_capacity", "paused", "out_of_service"].map((list) => read("/api/v1/declared", { list, limit: SHOWN_MAX })),
      ]);
      await Promise.all(items.map(async (item) => {
        item.longest = await longestWait(item, status.time);
      }));
      contended.update(items, (item) => item.kind + nameKey(item));
      // A semaphore may be on several lists.
      const found = new Map(lists.flatMap((list) => list.items).map((item) => [nameKey(item), item]));
      limited.update([...found.values()], nameKey);
      return status;
    },
  };
}

// How long the first request in a queue has waited; `null`: none waits any more.
async function longestWait(item, time) {
  try {
    const first = (await read("/api/v1/waiters", { kind: item.kind, ...nameOf(item), limit: 1 })).items[0];
    return first?.since === undefined || first.since === null ? null : time - first.since;
  } catch {
    // The name is gone since.
    return null;
  }
}

function overviewFigures(status, rates) {
  const figures = [["Version", status.version], ["Up", duration(status.time - status.started)]];
  const server = status.server;
  if (!server) {
    return figures;
  }
  const { counters, semaphores, memory } = server;
  const rate = rates.update(performance.now() / 1000, {
    acquires: counters.acquires + semaphores.acquires,
    releases: counters.releases + semaphores.releases,
  });
  const perSecond = (value) => (value === undefined ? "–" : `${Math.round(value).toLocaleString("en")}/s`);
  return [
    ...figures,
    ["Counters", amount(counters.names)],
    ["Semaphores", amount(semaphores.names)],
    ["Connections", amount(counters.connections + semaphores.connections)],
    ["Leased sessions", amount(server.sessions)],
    ["Grants", amount(server.grants)],
    ["Waiting requests", amount(server.waiting + server.sysv_waiting)],
    ["Acquires", perSecond(rate.acquires)],
    ["Releases", perSecond(rate.releases)],
    memory.max
      ? ["Memory", `${bytes(memory.used)} of ${bytes(memory.max)}`, memory.used / memory.max]
      : ["Memory", bytes(memory.used)],
  ];
}

export function names(parameters, go) {
  const state = { prefix: "", kind: "", after: "", ...parameters };
  // Where the first page with entries was found.
  let found = state.after;
  const table = new Table("Names", [
    { title: "Kind", state: (item) => item.kind },
    nameColumn((item) => item.kind),
    usage,
    number("Peak", "peak"),
    number("Waiting", "waiting"),
  ]);
  const first = button("First page", "First page", () => go("/names", { ...state, after: "" }));
  const next = button("Next", "Next page", () => go("/names", { ...state, after: next.value }));
  const text = element("span");
  const kinds = element("select", {}, ...[["", "both"], ["counter", "counters"], ["semaphore", "semaphores"]].map(([value, text]) => element("option", { value, selected: value === state.kind }, text)));
  kinds.addEventListener("change", () => go("/names", { ...state, kind: kinds.value, after: "" }));
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
      table.update(page.items, (item) => item.kind + nameKey(item));
      const length = page.items.length;
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
  const acts = element("p", { class: "buttons" });
  const holders = new Table("Holders", [
    ...entryColumns(() => time, false),
    { title: "Slots", state: (item) => (item.slots ?? []).join(", ") || "–" },
    { title: "Lease ends in", number: true, state: (item) => duration(item.ttl_left) },
    {
      title: "Actions",
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
      state: (item) => item.grant,
      cell: (item) => buttons(button("Cancel", `Cancel request ${item.grant}`, () => actions.cancel(item, shownName))),
    },
  ]);
  let actionsShown = "";
  return {
    title: plain(nameText(parameters)),
    element: element("div", {}, element("p", {}, element("a", { href: "#/names" }, "All names")), heading, figures.element, acts, element("h2", {}, "Holders"), holders.element, element("h2", {}, "Queue"), queue.element),
    async refresh() {
      const [status, found] = await Promise.all([
        read("/api/v1/status"),
        read("/api/v1/name", { ...parameters, limit: 100 }),
      ]);
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
      return status;
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
  if (item.declared) {
    figures.push(["State", stateOf(item.declared)], ["Label", plain(labelText(item.declared)) || "–"]);
  }
  return figures;
}

function stateOf(declared) {
  if (declared.removing) {
    return "being removed";
  }
  const out = declared.slots_out.length;
  const slots = out > 0 ? `, ${out} slots out of service` : "";
  return `${declared.paused ? "paused" : "in service"}${slots}`;
}

function declaredButtons(item) {
  const named = plain(nameText(item));
  return [
    item.paused
      ? button("Resume", `Resume ${named}`, () => actions.resume(item))
      : button("Pause", `Pause ${named}`, () => actions.pause(item)),
    item.configured ? null : button("Resize", `Resize ${named}`, () => actions.resize(item)),
  ].filter(Boolean);
}

export function declared(parameters, go) {
  const state = { prefix: "", offset: 0, ...parameters };
  const table = new Table("Declared semaphores", [
    nameColumn(() => "semaphore"),
    usage,
    number("Waiting", "waiting"),
    { title: "State", state: stateOf },
    { title: "From", state: (item) => (item.configured ? "configuration" : "request") },
    { title: "Label", state: labelText, cell: (item) => shown(labelText(item)) },
    { title: "Actions", state: (item) => `${item.generation}${item.paused}${item.capacity}`, cell: (item) => buttons(...declaredButtons(item)) },
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

export function sessions(parameters, go) {
  const state = { search: "", offset: 0, ...parameters };
  const table = new Table("Sessions", [
    { title: "Kind", state: (item) => item.kind },
    { title: "Session", number: true, state: (item) => item.session },
    { title: "Client", state: (item) => `${item.address}${item.identity}${labelText(item)}`, cell: (item) => element("span", {}, shown(labelText(item)), " ", item.identity === null ? "" : shown(item.identity), " ", item.address ?? "") },
    { title: "Connected", state: (item) => (item.connected ? "yes" : "no") },
    { title: "Age", number: true, state: (item) => duration(item.age) },
    number("Grants", "grants"),
    number("Waiting", "waiting"),
    { title: "Lease ends in", number: true, state: (item) => duration(item.ttl_left) },
    {
      title: "Actions",
      state: (item) => `${item.kind}${item.session}`,
      cell: (item) => buttons(item.kind === "process" ? null : button("Revoke", `Revoke session ${item.session}`, () => actions.revokeSession(item))),
    },
  ]);
  const pages = new Pages((offset) => go("/sessions", { ...state, offset }));
  const form = searchForm("Label, address or identity contains", state.search, (search) => go("/sessions", { search }));
  return {
    title: "Sessions",
    element: element("div", {}, element("h1", {}, "Sessions"), form, table.element, pages.element),
    async refresh() {
      const page = await read("/api/v1/sessions", { search: state.search, offset: state.offset, limit: 100 });
      table.update(page.items, (item) => `${item.kind}${item.session}`);
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
    element: element("div", {}, element("h1", {}, "Server"), ...sections.flatMap(([title, table]) => [element("h2", {}, title), table.element])),
    async refresh() {
      const status = await read("/api/v1/status");
      const { nodes: all = [], ...own } = (await read("/api/v1/cluster")) ?? {};
      cluster.update(flat(own), (item) => item.name);
      nodes.update(all, (item) => item.node);
      // A node that stands by has no other figures: the leader has them.
      if (status.server !== null) {
        await Promise.all(parts.map(async ([, path, table]) => table.update(flat((await read(path)) ?? {}), (item) => item.name)));
      }
      return status;
    },
  };
}
