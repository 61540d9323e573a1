// Requests to the server. A token is kept in this module's memory alone: it is in no storage and in no URL.

const URL_MAX = 1500;

let token = "";

export function setToken(text) {
  token = text.trim();
}

export function hasToken() {
  return token !== "";
}

// What the server answers with an error: its code, and a message for people.
export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function send(path, options) {
  const headers = { ...options.headers };
  if (token) {
    headers.Authorization = `Bearer ${token}`;
  }
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit", redirect: "error" });
  } catch {
    throw new Refused(0, "unreachable", "the server cannot be reached; this page tries again");
  }
  let body = null;
  try {
    body = await response.json();
  } catch {
    throw new Refused(response.status, "no_json", `the server answered ${response.status} without JSON`);
  }
  if (!response.ok) {
    const { code = "unknown", message = `the server answered ${response.status}` } = body?.error ?? {};
    throw new Refused(response.status, code, message);
  }
  return body;
}

function given(parameters) {
  return Object.entries(parameters).filter(([, value]) => value !== undefined && value !== "");
}

// A path and its parameters as in a URL, without those that have no value.
export function withQuery(path, parameters) {
  const query = new URLSearchParams(given(parameters).map(([key, value]) => [key, String(value)])).toString();
  return query ? `${path}?${query}` : path;
}

// Reads a list or an object. Parameters that are too long for a URL go into a body.
export function read(path, parameters = {}) {
  const url = withQuery(path, parameters);
  return url.length > URL_MAX ? change(path, Object.fromEntries(given(parameters))) : send(url, {});
}

// Sends a change.
export function change(path, body) {
  return send(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}
