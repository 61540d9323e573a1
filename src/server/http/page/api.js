// Requests to the server. A token is kept only in this module's memory, not in any storage or URL.

const URL_MAX = 1500;

// The kernel accepts connections even for a server that is suspended, so the page must not wait for an answer forever.
const READ_MS = 5000;

// The server answers a change after 10 s at the latest.
const CHANGE_MS = 15_000;

let token = "";
// Grows with each token that is set.
let tokenNumber = 0;

export function setToken(text) {
  token = text.trim();
  tokenNumber += 1;
}

export function numberOfToken() {
  return tokenNumber;
}

export function hasToken() {
  return token !== "";
}

// An error of a request: the status of the answer, 0 if there was none, a code, and a message for people.
export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function send(path, options, timeout) {
  const headers = { ...options.headers };
  if (token) {
    headers.Authorization = `Bearer ${token}`;
  }
  const signal = AbortSignal.timeout(timeout);
  let response;
  let text;
  try {
    response = await fetch(path, { ...options, headers, signal, cache: "no-store", credentials: "omit", redirect: "error" });
    text = await response.text();
  } catch {
    throw signal.aborted
      ? new Refused(0, "no answer", `the server has not answered within ${timeout / 1000} s`)
      : new Refused(0, "unreachable", "the server cannot be reached");
  }
  let body = null;
  try {
    body = JSON.parse(text);
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

// Returns a path and its parameters as in a URL, without parameters that have no value.
export function withQuery(path, parameters) {
  const query = new URLSearchParams(given(parameters).map(([key, value]) => [key, String(value)])).toString();
  return query ? `${path}?${query}` : path;
}

// Reads a list or an object. Parameters that are too long for a URL go into a body.
export function read(path, parameters = {}) {
  const url = withQuery(path, parameters);
  return url.length > URL_MAX ? post(path, Object.fromEntries(given(parameters)), READ_MS) : send(url, {}, READ_MS);
}

// Sends a change. Without an answer, it may have been made.
export async function change(path, body) {
  try {
    return await post(path, body, CHANGE_MS);
  } catch (error) {
    throw error.status === 0 ? new Refused(0, error.code, `${error.message}; check whether it was made before you repeat it`) : error;
  }
}

function post(path, body, timeout) {
  return send(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }, timeout);
}
