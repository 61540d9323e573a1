// The inputs of the action, and its requests: docs/http.md, "Leases". It uses Node alone, so that a runner installs nothing.

const { readFileSync } = require("node:fs");
const http = require("node:http");
const https = require("node:https");
const { setTimeout: sleep } = require("node:timers/promises");

/** An input, as the runner passes it to each program of the action. */
const input = (name) => process.env[`INPUT_${name.toUpperCase()}`]?.trim() ?? "";

/** The number in an input. */
function number(name) {
  const value = Number(input(name));
  if (!(value >= 0)) {
    throw new Error(`the input "${name}" is "${input(name)}"; it must be a number that is not negative`);
  }
  return value;
}

/** Where the servers are. */
function servers() {
  const urls = input("url").split(",").map((text) => new URL(text.trim()));
  const isLocal = ({ hostname }) => ["localhost", "127.0.0.1", "[::1]"].includes(hostname);
  const plain = urls.find((url) => url.protocol !== "https:" && !isLocal(url));
  if (plain !== undefined && input("token") !== "") {
    throw new Error(`the token is not sent to ${plain.host} without TLS, where others may read it; use https`);
  }
  return urls;
}

/** A request to one server, and its answer. */
function send(server, path, body, { token, ca }) {
  const headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
  const options = { method: "POST", headers, ca, timeout: (body.poll_ms ?? 0) + 2_000 };
  return new Promise((resolve, reject) => {
    const url = new URL(`/api/v1/lease/${path}`, server);
    const request = (url.protocol === "https:" ? https : http).request(url, options, async (response) => {
      try {
        const text = Buffer.concat(await response.toArray()).toString();
        resolve({ status: response.statusCode, ...JSON.parse(text) });
      } catch (error) {
        reject(error);
      }
    });
    request.on("timeout", () => request.destroy(new Error(`${url.host} does not answer`)));
    request.on("error", reject);
    request.end(JSON.stringify(body));
  });
}

/**
 * Sends a request to one server after the other until one answers it. Each may be sent again.
 *
 * @param {number} end when to give up, by performance.now()
 */
async function ask(path, body, end) {
  const urls = servers();
  const secrets = { token: input("token"), ca: input("ca") && readFileSync(input("ca")) };
  for (let attempt = 0; ; attempt += 1) {
    const answer = await send(urls[attempt % urls.length], path, body, secrets).catch((error) => ({ error }));
    if (answer.status < 500 && answer.status !== 408) {
      return answer;
    }
    if (performance.now() > end) {
      throw new Error(`no server answers: ${answer.error?.message || answer.error?.code}`);
    }
    await sleep(200 + Math.random() * 800);
  }
}

/** Runs a program of the action; what it throws fails the step. */
function run(program) {
  program().catch(({ message }) => {
    console.log(`::error title=signalbox::${message}`);
    process.exitCode = 1;
  });
}

module.exports = { ask, input, number, run };
