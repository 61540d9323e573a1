// The overview: what needs attention, and the main figures.

import { read } from "/api.js";
import { flat, kind, limitedSemaphores, marks, nameColumn, number, usage } from "/columns.js";
import { Figures, Table, element } from "/table.js";
import { amount, bytes, duration, nameKey, nameOf } from "/text.js";

const SHOWN_MAX = 10;

// Waits of at least this length need attention.
const LONG_WAIT_S = 60;

// Commits that take at least this long on average need attention.
const SLOW_COMMIT_S = 0.25;

// Refusals and failures within this time need attention.
const RECENT_MS = 5 * 60_000;

// Turns totals into rates per second since the last update.
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

// The growth of the totals of a process in the last minutes, or since the page was opened.
class Growth {
  samples = [];

  update(rows, { started }) {
    // Another process, as after a restart, has other totals.
    if (started !== this.started) {
      this.started = started;
      this.samples = [];
    }
    const now = Date.now();
    this.samples.push({ now, totals: new Map(rows.map(({ name, value }) => [name, value])) });
    while (this.samples[0].now < now - RECENT_MS) {
      this.samples.shift();
    }
    const { totals } = this.samples[0];
    return rows.map(({ name, value }) => ({ name, value: value - (totals.get(name) ?? value) })).filter(({ value }) => value > 0);
  }
}

// Kept outside the view, which is made anew each time it is opened.
const refusalsGrowth = new Growth();
const storeGrowth = new Growth();
const commitGrowth = new Growth();

function listed(rows) {
  return rows.map(({ name, value }) => `${amount(value)} ${name}`).join(", ");
}

function counted(count, one, many) {
  return `${amount(count)} ${count === 1 ? one : many}`;
}

// Returns what needs attention: texts and their looks, the worst first.
function troublesOf(status, found) {
  const troubles = [];
  const add = (condition, text, look = "warn") => condition && troubles.push([text, look]);
  add(status.state === "draining", "▼ This process is being stopped");
  add(status.cluster?.fenced, "✖ As far as this node knows, it no longer leads, and it grants nothing", "bad");
  if (found) {
    const { totals, rows, refused, failed, commitSeconds } = found;
    add(failed.length > 0, `✖ The store fails. In the last minutes: ${listed(failed)}`, "bad");
    add(commitSeconds >= SLOW_COMMIT_S, `◔ The store is slow. In the last minutes, a commit took ${commitSeconds.toFixed(1)} s on average`);
    add(totals.paused > 0, `❚❚ ${counted(totals.paused, "semaphore is", "semaphores are")} paused`, "bad");
    add(totals.no_capacity > 0, `✖ ${counted(totals.no_capacity, "semaphore has", "semaphores have")} a capacity of 0, so all requests are refused`, "bad");
    add(totals.above_capacity > 0, `▲ ${counted(totals.above_capacity, "semaphore is", "semaphores are")} above capacity`, "bad");
    add(totals.out_of_service > 0, `◌ ${counted(totals.out_of_service, "semaphore has", "semaphores have")} slots out of service`);
    add(refused.length > 0, `✖ Refused in the last minutes: ${listed(refused)}`, "bad");
    const longest = Math.max(0, ...rows.map((item) => item.longest ?? 0));
    const waiting = `${counted(status.server.waiting, "request waits", "requests wait")}, the longest for ${duration(longest)}`;
    add(longest >= LONG_WAIT_S, `◔ ${waiting}`);
    if (troubles.length === 0) {
      troubles.push([`✔ Healthy: nothing is paused, at capacity 0, above capacity or out of service${status.server.waiting > 0 ? `; ${waiting}` : ", and no request waits"}`, "good"]);
    }
  }
  return troubles;
}

export function overview() {
  const troubles = element("ul", { class: "troubles", "aria-label": "What needs attention" });
  const figures = new Figures();
  const rates = new Rates();
  const since = element("p", { class: "quiet" });
  const table = new Table("Names with the longest waits, and semaphores that are paused, at capacity 0, above capacity or have slots out of service", [
    nameColumn((item) => item.kind),
    marks,
    usage,
    number("Waiting", "waiting", "waiting"),
    { title: "Longest wait", short: "longest", number: true, state: (item) => (item.waiting > 0 ? duration(item.longest) : "") },
    { ...kind, class: "spare" },
  ]);
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

// Reads the names that need attention, and what was refused or has failed.
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
  const urgency = (item) => (item.paused || item.capacity === 0 ? 2 : item.in_use > item.capacity ? 1 : 0);
  rows.sort((a, b) => urgency(b) - urgency(a) || (b.longest ?? -1) - (a.longest ?? -1));
  const refused = flat(refusals);
  const failures = [{ name: "batches that could not be committed", value: store.failures }];
  const all = [...refused, ...failures].filter(({ value }) => value > 0);
  const committed = commitGrowth.update(["commits", "commit_seconds"].map((name) => ({ name, value: store[name] })), status);
  const [commits, seconds] = ["commits", "commit_seconds"].map((key) => committed.find(({ name }) => name === key)?.value ?? 0);
  return {
    rows,
    totals,
    refused: refusalsGrowth.update(refused, status),
    failed: storeGrowth.update(failures, status),
    commitSeconds: commits > 0 ? seconds / commits : 0,
    since: all.length > 0 ? `Refused and failed since the start: ${listed(all)}.` : "Nothing was refused or failed since the start.",
  };
}

// Returns how long the first request in a queue has waited; `null`: none waits.
async function longestWait(item, time) {
  try {
    const first = (await read("/api/v1/waiters", { kind: item.kind, ...nameOf(item), limit: 1 })).items[0];
    return first?.since === undefined || first.since === null ? null : time - first.since;
  } catch (error) {
    // The name no longer exists.
    if (error.status === 404) {
      return null;
    }
    throw error;
  }
}

function overviewFigures(status, rates) {
  const about = [
    { name: "Version", text: status.version },
    { name: "Up", text: duration(status.time - status.started) },
  ];
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
  const waiting = server.waiting + server.sysv_waiting;
  return [
    { name: "Waiting requests", text: amount(waiting), value: waiting },
    { name: "Grants", text: amount(server.grants), value: server.grants },
    { name: "Single flights", text: `${amount(server.single_flights)}, used by ${amount(server.told_done)} others` },
    { name: "Acquires and grants", text: perSecond(rate.acquires) },
    { name: "Plain releases", text: perSecond(rate.releases) },
    { name: "Leased sessions", text: amount(server.sessions) },
    { name: "Connections", text: amount(counters.connections + semaphores.connections) },
    { name: "Counters", text: amount(counters.names) },
    { name: "Semaphores", text: amount(semaphores.names) },
    memory.max
      ? { name: "Memory", text: `${bytes(memory.used)} of ${bytes(memory.max)}`, part: memory.used / memory.max }
      : { name: "Memory", text: bytes(memory.used) },
    ...about,
  ];
}
