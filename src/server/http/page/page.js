// The page: it shows the view that the address names, and updates it while the page is visible.

import { read, setToken, hasToken, withQuery, Refused } from "/api.js";
import { page as actionsPage } from "/actions.js";
import { overview } from "/overview.js";
import { duration, plain } from "/text.js";
import * as views from "/views.js";

const PERIOD_MS = 2000;

// Data that should be updated and is older than this is shown as stale.
const STALE_MS = 6000;

// The symbols and looks of states.
const STATES = new Map([
  ["serving", ["●", "good"]],
  ["relaying", ["◐", "warn"]],
  ["standby", ["◐", "warn"]],
  ["draining", ["▼", "warn"]],
  ["unreachable", ["✖", "bad"]],
  ["no answer", ["✖", "bad"]],
]);

const VIEWS = new Map([
  ["/", overview],
  ["/names", views.names],
  ["/name", views.name],
  ["/declared", views.declared],
  ["/sessions", views.sessions],
  ["/held", views.held],
  ["/server", views.server],
]);

// The lists to which the views of single items belong.
const LISTS = new Map([["/name", "/names"], ["/held", "/sessions"]]);

const content = document.getElementById("content");
const problem = document.getElementById("problem");
const outcome = document.getElementById("outcome");
const state = document.getElementById("state");
const ageText = document.getElementById("age");
const live = document.getElementById("live");
const tokenButton = document.getElementById("token");
const tokenDialog = document.getElementById("token-dialog");
const tokenText = document.getElementById("token-text");

let view = null;
let timer = null;
let isRefreshing = false;

// The last known state of the server, or the reason why it is not known, in one or two words.
let stateName = "connecting";
// When the view was opened and updated, by the clock of this machine, which also runs while the machine sleeps.
let openedAt = Date.now();
let updatedAt = null;
// When the server last answered, even with an error.
let answeredAt = Date.now();

// Returns the path and the parameters that the address names.
function address() {
  const [path, query] = location.hash.replace(/^#/, "").split(/\?(.*)/s);
  const parameters = Object.fromEntries(new URLSearchParams(query ?? ""));
  if (parameters.offset !== undefined) {
    parameters.offset = Math.max(0, Number.parseInt(parameters.offset, 10) || 0);
  }
  return [path || "/", parameters];
}

function go(path, parameters) {
  // The first page needs no offset.
  location.hash = withQuery(path, { ...parameters, offset: parameters.offset || undefined });
}

function show() {
  const [path, parameters] = address();
  const make = VIEWS.get(path) ?? overview;
  view = make(parameters, go);
  openedAt = Date.now();
  updatedAt = null;
  document.title = `${view.title} – signalbox`;
  content.replaceChildren(view.element);
  for (const link of document.querySelectorAll("nav[aria-label='Views'] a")) {
    const isCurrent = link.getAttribute("href") === `#${LISTS.get(path) ?? path}`;
    if (isCurrent) {
      link.setAttribute("aria-current", "page");
    } else {
      link.removeAttribute("aria-current");
    }
  }
  refresh();
}

async function refresh() {
  clearTimeout(timer);
  if (isRefreshing) {
    return;
  }
  isRefreshing = true;
  const refreshed = view;
  try {
    const own = await readStatus();
    stateName = own.state;
    answeredAt = Date.now();
    const status = own.server === null ? await readLeader(own) : own;
    const isHidden = status.server === null && !refreshed.isOfNode;
    if (!isHidden) {
      await refreshed.refresh(status);
    }
    if (refreshed === view) {
      updatedAt = Date.now();
      content.hidden = isHidden;
      document.body.classList.toggle("read-only", own !== status || !status.changes);
      showProblem(own.server === null ? otherNodeText(own, status) : status.problem ?? "");
    }
  } catch (error) {
    if (error.status > 0) {
      answeredAt = Date.now();
    }
    const text = explained(error);
    if (refreshed === view) {
      showProblem(text);
    }
  }
  isRefreshing = false;
  showAge();
  if (refreshed !== view) {
    refresh();
  } else {
    scheduleRefresh();
  }
}

// Reads the status. A client that may not read it may still read some names.
async function readStatus() {
  try {
    return await read("/api/v1/status");
  } catch (error) {
    if (error.status !== 401 && error.status !== 403) {
      throw error;
    }
    return { state: "restricted", time: Date.now() / 1000, changes: true, problem: explained(error) };
  }
}

// Reads the status of the leader: a node that does not lead forwards this request to it. Without an answer, returns the
// status of this node.
async function readLeader(own) {
  try {
    return await read("/api/v1/leader");
  } catch (error) {
    return { ...own, problem: error.message };
  }
}

// Returns a text that says why this process has no data of its own, and whose data is shown.
function otherNodeText({ state: name, cluster }, { server, problem: refusal }) {
  const leader = cluster?.leader;
  if (!leader) {
    return `This process does not serve clients: it is in the state "${name}"${cluster ? ", and knows no leader of the cluster" : ""}.`;
  }
  const addresses = cluster.nodes.find((node) => node.node === leader)?.addresses ?? [];
  const where = addresses.length > 0 ? ` (${addresses.join(" ")})` : "";
  const shown = server === null ? `its data is not here${refusal ? `: ${refusal}` : ""}; see` : "this is its data; make changes on";
  return `Node ${plain(leader)}${where} leads the cluster ${plain(cluster.name)}, and this one does not: ${shown} its status page.`;
}

function scheduleRefresh() {
  clearTimeout(timer);
  if (isLive() && !document.hidden) {
    timer = setTimeout(refresh, PERIOD_MS);
  }
}

// Returns the text of an error. If the server has not answered, the error becomes the state that is shown.
function explained(error) {
  if (!(error instanceof Refused)) {
    return `this page has failed: ${error.message}; please report this`;
  }
  if (error.status === 0) {
    stateName = error.code;
    return `${error.message}; this page tries again, and what it shows is old`;
  }
  return error.status === 401 || error.status === 403 ? `${error.message} (button "Use a token")` : error.message;
}

function isLive() {
  return live.getAttribute("aria-pressed") === "true";
}

// Shows the state and how old the data is. Old data must not look like that of a server that answers.
function showAge() {
  const age = Date.now() - (updatedAt ?? openedAt);
  const isSilent = isLive() && Date.now() - answeredAt >= STALE_MS;
  const name = isSilent && STATES.get(stateName)?.[1] !== "bad" ? "no answer" : stateName;
  const [symbol, look] = STATES.get(name) ?? ["…", "warn"];
  setText(state, `${symbol} ${name}`);
  state.className = isLive() || look === "bad" ? `state ${look}` : "state";
  setText(ageText, age < STALE_MS ? "" : updatedAt === null ? "no data yet" : `data of ${duration(age / 1000)} ago`);
  document.body.classList.toggle("stale", (isLive() && age >= STALE_MS) || look === "bad");
}

function setText(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

function showProblem(text) {
  setText(problem, text);
  problem.hidden = text === "";
}

// Asks for a token. Returns whether there is one.
function askForToken() {
  tokenText.value = "";
  tokenDialog.returnValue = "";
  tokenDialog.showModal();
  return new Promise((resolve) => {
    tokenDialog.addEventListener("close", () => {
      if (tokenDialog.returnValue === "use") {
        setToken(tokenText.value);
      } else if (tokenDialog.returnValue === "forget") {
        setToken("");
      }
      tokenText.value = "";
      tokenButton.textContent = hasToken() ? "Token in use" : "Use a token";
      resolve(hasToken());
    }, { once: true });
  });
}

actionsPage.askForToken = askForToken;
actionsPage.refresh = refresh;
actionsPage.announce = (text, isProblem = false) => {
  outcome.textContent = isProblem ? `Not done. ${text}` : `Done: ${text}.`;
};

live.addEventListener("click", () => {
  live.setAttribute("aria-pressed", String(!isLive()));
  live.textContent = isLive() ? "● Live" : "❚❚ Stopped";
  showAge();
  if (isLive()) {
    refresh();
  } else {
    clearTimeout(timer);
  }
});
tokenButton.addEventListener("click", async () => {
  await askForToken();
  refresh();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) {
    refresh();
  }
});
window.addEventListener("hashchange", () => {
  // The outcome of an action belongs to the view in which it was made.
  setText(outcome, "");
  show();
  content.focus({ preventScroll: true });
});
show();
setInterval(showAge, 1000);
