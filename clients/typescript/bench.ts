// Measures the client against a server on loopback: npm run bench

import { once } from "node:events";
import * as http from "node:http";
import { join } from "node:path";

import { Client, type Permit } from "signalbox";

import { Server } from "./test/server.js";

const PAIRS = 5_000;
const PERMITS = 1_000;
const REVOCATIONS = 200;
const TTL_MS = 3_000;

/** Runs a step again and again, and returns how long each took, in ascending order of microseconds. */
async function times(count: number, step: (index: number) => Promise<unknown>): Promise<number[]> {
  const taken: number[] = [];
  for (let index = 0; index < count; index++) {
    const begun = performance.now();
    await step(index);
    taken.push((performance.now() - begun) * 1000);
  }
  return taken.sort((a, b) => a - b);
}

function print(what: string, taken: number[]): void {
  const at = (share: number): string => (taken[Math.floor(taken.length * share)] ?? NaN).toFixed(0);
  const perSecond = (1e6 * taken.length) / taken.reduce((sum, time) => sum + time, 0);
  console.log(`${what}: ${perSecond.toFixed(0)}/s, median ${at(0.5)} us, p99 ${at(0.99)} us`);
}

await using server = await Server.start();
const tokens = join(server.directory, "tokens.toml");
const token = server.command("token", "create", "bench", "--rights", "all", "--file", tokens).trim();
server.configure(`[access]\ntokens = "${tokens}"\n`);
await server.stop();
await server.start();

const agent = new http.Agent({ keepAlive: true });
async function post(path: string, body: object): Promise<any> {
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${token}` };
  const request = http.request(server.url + path, { method: "POST", headers, agent });
  request.end(JSON.stringify(body));
  const [response] = (await once(request, "response")) as [http.IncomingMessage];
  return JSON.parse(Buffer.concat(await response.toArray()).toString());
}

const client = new Client({ url: server.url });
const roundTrip = (): Promise<any> => post("/api/v1/grant", { grant: "1" });
const pair = (index: number): Promise<void> => client.using(`pair/${index % 64}`, { maximum: 1 }, () => undefined);
await (await client.acquire("first", { maximum: 1 })).release();
globalThis.gc?.();
const before = process.memoryUsage().rss;
const permits: Permit[] = [];
await times(PERMITS, async (index) => permits.push(await client.acquire(`many/${index}`, { maximum: 1 })));
globalThis.gc?.();
console.log(`memory of each of ${PERMITS} permits: ${((process.memoryUsage().rss - before) / PERMITS).toFixed(0)} bytes`);
await times(500, roundTrip);
await times(500, pair);
print("a request without the client", await times(PAIRS, roundTrip));
print("acquire and release, one after the other", await times(PAIRS, pair));
const begun = performance.now();
const side = await Promise.all(Array.from({ length: 64 }, (_, index) => times(PAIRS / 64, () => pair(index))));
const count = side.flat().length;
console.log(`acquire and release, 64 beside each other: ${((1000 * count) / (performance.now() - begun)).toFixed(0)}/s`);

print("check", await times(PAIRS, async () => permits[0]?.check()));
await Promise.all(permits.map((permit) => permit.release()));

const delays: number[] = [];
const revocation = async (): Promise<void> => {
  const permit = await client.acquire("revoked", { maximum: 1 });
  // Its renewal waits at the server.
  await new Promise((resolve) => setTimeout(resolve, 100));
  const aborted = once(permit.signal, "abort");
  const begun = performance.now();
  void post("/api/v1/revoke", { grant: String(permit.fence), grace_ms: 10_000 });
  await aborted;
  delays.push((performance.now() - begun) * 1000);
  await permit.release();
};
await times(REVOCATIONS, revocation);
print("revocation to signal", delays.sort((a, b) => a - b));

const last: Permit = await client.acquire("last", { maximum: 1, ttlMs: TTL_MS });
const lost = once(last.signal, "abort");
const alive = setInterval(() => undefined, 1000);
await new Promise((resolve) => setTimeout(resolve, 100));
await server.stop();
const died = performance.now();
await lost;
console.log(`death of the server to the loss of a lease of ${TTL_MS} ms: ${(performance.now() - died).toFixed(0)} ms`);
clearInterval(alive);
await client.close();
agent.destroy();
