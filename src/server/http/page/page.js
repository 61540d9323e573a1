// The page: it shows the view that the address names, and updates it while the page is visible.

import { read, setToken, hasToken, withQuery, Refused } from "/api.js";
import { page as actionsPage } from "/actions.js";
import * as views from "/views.js";

const PERIOD_MS = 2000;

const VIEWS = new Map([
  ["/", views.overview],
  ["/names", views.names],
  ["/name", views.name],
  ["/declared", views.declared],
  ["/sessions", views.sessions],
  ["/server", views.server],
]);

const content = document.getElementById("content");
const problem = document.getElementById("problem");
const news = document.getElementById("news");
const state = document.getElementById("state");
const live = document.getElementById("live");
const tokenButton = document.getElementById("token");
const tokenDialog = document.getElementById("token-dialog");
const tokenText = document.getElementById("token-text");

let view = null;
let timer = null;
let isRefreshing = false;

// The path and the parameters that the address names.
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
  const make = VIEWS.get(path) ?? views.overview;
  view = make(parameters, go);
  document.title = `${view.title} – signalbox`;
  content.replaceChildren(view.element);
  for (const link of document.querySelectorAll("nav[aria-label='Views'] a")) {
    const isCurrent = link.getAttribute("href") === `#${path}` || (path === "/name" && link.getAttribute("href") === "#/names");
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
    const status = (await refreshed.refresh()) ?? (await read("/api/v1/status"));
    showState(status.state);
    showProblem("");
  } catch (error) {
    if (refreshed === view) {
      showProblem(explained(error));
    }
  }
  isRefreshing = false;
  if (refreshed !== view) {
    refresh();
  } else {
    later();
  }
}

function later() {
  clearTimeout(timer);
  if (live.getAttribute("aria-pressed") === "true" && !document.hidden) {
    timer = setTimeout(refresh, PERIOD_MS);
  }
}

function explained(error) {
  if (!(error instanceof Refused)) {
    return `this page has failed: ${error.message}; please report this`;
  }
  if (error.status === 0) {
    showState("unreachable");
  }
  return error.status === 401 || error.status === 403 ? `${error.message} (button "Use a token")` : error.message;
}

function showState(name) {
  state.textContent = name;
  state.className = ["serving", "relaying"].includes(name) ? "state good" : name === "unreachable" ? "state bad" : "state";
}

function showProblem(text) {
  if (problem.textContent !== text) {
    problem.textContent = text;
  }
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
  news.textContent = isProblem ? `Not done. ${text}` : `Done: ${text}.`;
};

live.addEventListener("click", () => {
  const isLive = live.getAttribute("aria-pressed") !== "true";
  live.setAttribute("aria-pressed", String(isLive));
  if (isLive) {
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
  show();
  content.focus({ preventScroll: true });
});
show();
