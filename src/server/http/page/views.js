// The views of the page. Each has a title, an element, and `refresh`, which asks the server and updates the element.

import { numberOfToken, read } from "/api.js";
import * as actions from "/actions.js";
import {
  button, buttons, choice, client, entryColumns, flat, holding, kind, limitedSemaphores, marks, marksOf, marksText, nameColumn, number, searchForm,
  session, slotsText, usage,
} from "/columns.js";
import { Figures, Pages, Table, element, fill } from "/table.js";
import { amount, duration, labelText, nameKey, nameText, plain, shown } from "/text.js";

// Reads a page of names. Skips empty pages, because the next matching names may be far away; `from` is the cursor of the
// page that was found.
async function pageOfNames(parameters) {
  let from = parameters.after;
  let page = await read("/api/v1/names", { ...parameters, limit: 100 });
  while (page.items.length === 0 && page.next !== null) {
    from = page.next;
    page = await read("/api/v1/names", { ...parameters, after: from, limit: 100 });
  }
  return { ...page, from };
}

export function names(parameters, go) {
  const state = { prefix: "", kind: "", after: "", ...parameters };
  // The cursor of the page that is shown, from which a refresh reads it without skipping empty pages again.
  let found = state.after;
  const table = new Table("Names", [
    kind,
    nameColumn((item) => item.kind),
    marks,
    usage,
    number("Peak", "peak", "peak"),
    number("Waiting", "waiting", "waiting"),
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
      const page = await pageOfNames({ prefix, kind, after: found });
      found = page.from;
      const { items: limited } = await limitedSemaphores(prefix, 1000);
      const items = page.items.map((item) => ({ ...limited.get(item.kind + nameKey(item)), ...item }));
      table.update(items, (item) => item.kind + nameKey(item));
      text.textContent = namesText(page);
      first.disabled = state.after === "";
      next.disabled = page.next === null;
      next.value = page.next ?? "";
    },
  };
}

function namesText({ items, next }) {
  return `${amount(items.length)} ${items.length === 1 ? "name" : "names"}${next === null ? "" : ", and perhaps more"}`;
}

export function name(parameters) {
  let time = 0;
  let shownName = parameters;
  const heading = element("h1", {}, shown(nameText(parameters)));
  const figures = new Figures();
  const acts = element("p", { class: "buttons change" });
  const holders = new Table("Holders", [
    { title: "Grant", class: "word spare", state: (item) => item.grant ?? "held by a connection" },
    ...entryColumns(() => time, "Held for"),
    ...holding,
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
    number("Place", "position", "place"),
    ...entryColumns(() => time, "Waiting for"),
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
        fill(acts, item.declared ? declaredButtons({ ...item, ...item.declared }) : []);
      }
      holders.update(item.holders, (holder) => `${holder.grant}/${holder.session}`);
      holders.setCaption(`Holders: ${amount(item.holders.length)} of ${amount(item.holders_total)}`);
      queue.update(item.queue, (waiter) => `${waiter.position}/${waiter.session}`);
      queue.setCaption(`Waiting requests, in the order in which they are served: ${amount(item.queue.length)} of ${amount(item.waiting)}`);
    },
  };
}

function nameFigures(item) {
  const { kind, in_use: inUse, capacity, waiting } = item;
  const state = { ...item, ...item.declared };
  const hasCapacity = typeof capacity === "number";
  return [
    { name: "State", text: marksText(state), look: marksOf(state)[0]?.[1] },
    { name: "Kind", text: kind },
    { name: "In use", text: usage.state(item), part: hasCapacity ? Math.min(1, inUse / Math.max(1, capacity)) : undefined, value: inUse, most: capacity ?? 1 },
    { name: "Waiting", text: amount(waiting), value: waiting },
    { name: "Peak", text: amount(item.peak) },
    ...(item.declared ? [{ name: "Label", text: plain(labelText(item.declared)) || "–" }] : []),
  ];
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
    number("Waiting", "waiting", "waiting"),
    { title: "From", class: "word", short: "from", state: (item) => (item.configured ? "configuration" : "request") },
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

// The orders of sessions.
const ORDERS = [
  ["", "by session"],
  ["age", "oldest first"],
  ["grants", "most grants first"],
  ["waiting", "most waiting requests first"],
  ["lease", "shortest lease first"],
];

export function sessions(parameters, go) {
  const state = { search: "", sort: "", offset: 0, ...parameters };
  const table = new Table("Sessions", [
    client,
    { ...kind, class: "word spare" },
    session,
    { title: "Age", class: "number spare", state: (item) => duration(item.age) },
    number("Grants", "grants", "grants"),
    number("Waiting", "waiting", "waiting"),
    { title: "Lease ends in", short: "lease", number: true, state: (item) => duration(item.ttl_left) },
    {
      title: "Actions",
      class: "change",
      state: (item) => `${item.kind}${item.session}`,
      cell: (item) => buttons(item.kind === "process" ? null : button("Revoke", `Revoke session ${item.session}`, () => actions.revokeSession(item))),
    },
  ]);
  const pages = new Pages((offset) => go("/sessions", { ...state, offset }));
  const form = searchForm("Label, address or identity contains", state.search, (search) => go("/sessions", { ...state, search, offset: 0 }));
  const order = choice(ORDERS, state.sort, (sort) => go("/sessions", { ...state, sort, offset: 0 }));
  form.append(
    element("label", {}, "Order", order),
    element("button", { type: "button", class: "change", onclick: () => actions.revokeClient() }, "Revoke a client"),
  );
  return {
    title: "Sessions",
    element: element("div", {}, element("h1", {}, "Sessions"), form, table.element, pages.element),
    async refresh() {
      const { search, sort, offset } = state;
      const page = await read("/api/v1/sessions", { search, sort: sort || "session", offset: sort ? 0 : offset, limit: 1000 });
      table.update(page.items, (item) => `${item.kind}${item.session}`);
      // The server compares all sessions, and answers with the first ones only.
      const isPart = sort && page.items.length < page.total;
      table.setCaption(isPart ? `The first ${amount(page.items.length)} of ${amount(page.total)} sessions in this order` : "Sessions");
      pages.update(page);
    },
  };
}

// The view of what a session, or all sessions of a client, hold and wait for.
export function held(parameters, go) {
  const { client: text, session: id, offset = 0 } = parameters;
  let time = 0;
  const title = text === undefined ? `Session ${id}` : `Client ${plain(text)}`;
  const table = new Table("Grants and waiting requests", [
    nameColumn((item) => item.kind),
    { title: "State", state: (item) => (item.state === "waits" ? "◔ waits" : item.state) },
    // The client and the session are the same in all rows about one session.
    ...entryColumns(() => time, "For").slice(text === undefined ? 2 : 0),
    ...holding,
    {
      title: "Actions",
      class: "change",
      state: (item) => `${item.grant}${item.state}`,
      cell: (item) => buttons(
        item.state === "waits"
          ? button("Cancel", `Cancel request ${item.grant}`, () => actions.cancel(item, item))
          : button("Revoke", `Revoke grant ${item.grant}`, () => actions.revokeGrant(item, item)),
      ),
    },
  ]);
  const pages = new Pages((next) => go("/held", { ...parameters, offset: next }));
  const plainNames = new Table("", [nameColumn((item) => item.kind), kind, usage]);
  plainNames.element.hidden = true;
  const revoke = text === undefined
    ? button("Revoke", `Revoke session ${id}`, () => actions.revokeSession({ session: id }))
    : button("Revoke", `Revoke all sessions of ${plain(text)}`, () => actions.revokeClient(text));
  return {
    title,
    element: element("div", {}, element("p", {}, element("a", { href: "#/sessions" }, "All sessions")), element("h1", {}, title), element("p", { class: "buttons change" }, revoke), table.element, pages.element, plainNames.element),
    async refresh(status) {
      const page = await read("/api/v1/held", { session: id, client: text, offset, limit: 100 });
      time = status.time;
      table.update(page.items, (item) => `${item.grant}${item.kind}${nameKey(item)}`);
      pages.update(page);
      const held = text === undefined ? await plainOf(id) : null;
      plainNames.element.hidden = held === null;
      if (held !== null) {
        plainNames.update(held.items, (item) => item.kind + nameKey(item));
        plainNames.setCaption(`Held by plain Acquires of this connection: ${namesText(held)}`);
      }
    },
  };
}

// Reads the names that a connection holds by plain Acquires; `null`: the session is not that of a connection, or it has
// ended.
async function plainOf(id) {
  try {
    return await pageOfNames({ holder: id });
  } catch (error) {
    if (error.status === 404) {
      return null;
    }
    throw error;
  }
}

// Reads the tokens that clients may show; `null`: only administrators see them.
async function listedTokens() {
  try {
    return (await read("/api/v1/tokens", { limit: 1000 })).items;
  } catch (error) {
    if (error.code === "not_permitted") {
      return null;
    }
    throw error;
  }
}

export function server() {
  const columns = () => [
    { title: "What", class: "wide", state: (item) => item.name },
    { title: "Value", number: true, state: (item) => (typeof item.value === "number" ? amount(item.value) : String(item.value ?? "–")) },
  ];
  const parts = [
    ["Refusals since the start", "/api/v1/refusals", new Table("Refused requests and connections, by reason", columns())],
    ["Store", "/api/v1/store", new Table("Where durable state is kept", columns())],
  ];
  const tokens = new Table("Tokens that clients may show", [
    { title: "Token", class: "wide", state: (item) => item.name },
    { title: "Id", class: "word spare", state: (item) => item.id },
    { title: "Rights", state: (item) => [item.rights, ...item.areas].join(" ") },
    { title: "Expires in", short: "expires in", number: true, state: (item) => (item.is_expired ? "✖ expired" : item.expires_at === null ? "never" : duration(item.expires_at - time)) },
    { title: "Last use", short: "last use", number: true, state: (item) => (item.last_use === null ? "none since the start" : item.last_use >= time ? "now" : `${duration(time - item.last_use)} ago`) },
  ]);
  const tokenPart = element("div", { hidden: true }, element("h2", {}, "Tokens"), tokens.element);
  let time = 0;
  // The number of the token that was refused. The page does not ask again with it, because the server counts and logs each
  // refusal.
  let refusedToken = null;
  const cluster = new Table("This node of the cluster", columns());
  const nodes = new Table("Nodes of the cluster", [
    { title: "Node", class: "wide", state: (item) => item.node },
    { title: "State", state: (item) => (item.leads ? "leads" : item.eligible ? "stands by" : "relays") },
    { title: "Version", short: "version", state: (item) => item.version },
    { title: "Last heartbeat", short: "heartbeat", number: true, state: (item) => duration(item.heartbeat_age) },
    { title: "Relayed connections", short: "relayed", number: true, state: (item) => amount(item.relayed_connections) },
    { title: "Addresses", state: (item) => item.addresses.join(" ") },
  ]);
  const sections = parts.map(([title, , table]) => [title, table]).concat([["Cluster", cluster], ["Nodes", nodes]]);
  return {
    title: "Server",
    isOfNode: true,
    element: element("div", {}, element("h1", {}, "Server"), ...sections.flatMap(([title, table]) => [element("h2", {}, title), table.element]), tokenPart),
    async refresh(status) {
      const { nodes: all = [], ...own } = (await read("/api/v1/cluster")) ?? {};
      cluster.update(flat(own), (item) => item.name);
      nodes.update(all, (item) => item.node);
      // The other figures are those of the leader. They are missing if no leader has answered.
      if (status.server !== null) {
        time = status.time;
        const token = numberOfToken();
        const listed = token === refusedToken ? null : await listedTokens();
        refusedToken = listed === null ? token : null;
        tokenPart.hidden = listed === null;
        tokens.update(listed ?? [], (item) => item.id);
        await Promise.all(parts.map(async ([, path, table]) => table.update(flat((await read(path)) ?? {}), (item) => item.name)));
      }
    },
  };
}
