// Renewal and loss: what keeps a lease, and how the program learns that it is lost.

import assert from "node:assert/strict";
import { once } from "node:events";
import { spawn } from "node:child_process";
import { chmodSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { Client, type ClientEvent, Lost, Misuse, NotPermitted, type Permit } from "signalbox";

import { eventually, Server } from "./server.js";

/** Long enough for a machine that is busy with other work. */
const TTL_MS = 3_000;

/** Blocks the event loop. */
function block(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

function lossOf(permit: Permit): Lost | undefined {
  try {
    permit.check();
    return undefined;
  } catch (error) {
    assert.ok(error instanceof Lost);
    return error;
  }
}

test("a blocked event loop loses no lease", async () => {
  await using server = await Server.start();
  await using client = new Client({ url: server.url, ttlMs: TTL_MS });
  await using permit = await client.acquire("blocked", { maximum: 1 });
  block(2 * TTL_MS);
  permit.check();
  assert.equal((await server.usage("blocked")).in_use, 1);
});

test("a program whose event loop is blocked reads that its permit is revoked", async () => {
  await using server = await Server.start();
  await using client = new Client({ url: server.url });
  const permit = await client.acquire("revoked", { maximum: 1 });
  const { signal } = permit;
  server.command("revoke", "--grant", String(permit.fence), "--grace", "20");
  // No turn of the event loop.
  for (let tries = 0; lossOf(permit) === undefined && tries < 1000; tries++) {
    block(10);
  }
  assert.equal(lossOf(permit)?.reason, "revoked");
  assert.ok(signal.aborted && signal.reason === lossOf(permit), "check aborts the signal, too");
  assert.ok(permit.timeLeftMs > 0, "it is held until the end of the grace period");
  await permit.release();
  await server.free("revoked");
});

test("a revocation aborts the signal, and is told before the loss", async () => {
  await using server = await Server.start();
  const events: ClientEvent[] = [];
  await using client = new Client({ url: server.url, onEvent: (event) => events.push(event) });
  const permit = await client.acquire("told", { maximum: 1 });
  const aborted = once(permit.signal, "abort");
  server.command("revoke", "--grant", String(permit.fence), "--grace", "1");
  await aborted;
  assert.ok(permit.signal.reason instanceof Lost && permit.signal.reason.reason === "revoked");
  await eventually("it is lost", () => events.at(-1)?.type === "lost");
  assert.deepEqual(events.filter(({ type }) => type !== "renewed").map(({ type }) => type), ["acquired", "revoking", "lost"]);
  assert.equal(permit.timeLeftMs, 0);
});

test("work that returns after its permit was lost is not a success, and its own error comes first", async () => {
  await using server = await Server.start();
  await using client = new Client({ url: server.url });
  const untilLost = async (permit: Permit): Promise<void> => {
    const aborted = once(permit.signal, "abort");
    server.command("revoke", "--grant", String(permit.fence), "--grace", "0");
    await aborted;
  };
  await assert.rejects(client.using("lost", { maximum: 1 }, untilLost), (error) => error instanceof Lost && error.reason === "revoked");
  const failing = client.using("lost", { maximum: 1 }, async (permit) => {
    await untilLost(permit);
    throw new RangeError("of the work");
  });
  await assert.rejects(failing, RangeError);
});

test("a permit is lost when no server answers", async () => {
  await using server = await Server.start();
  await using client = new Client({ url: server.url, ttlMs: TTL_MS });
  const permit = await client.acquire("gone", { maximum: 1 });
  const aborted = once(permit.signal, "abort");
  await server.signal("SIGSTOP");
  await aborted;
  assert.equal(permit.timeLeftMs, 0);
  assert.equal(lossOf(permit)?.reason, "unreachable");
});

test("a lease survives a restart of a server with a data directory, and so does a place in the queue", async () => {
  await using server = await Server.start();
  server.configure(`data_dir = "${server.directory}"`);
  await server.stop();
  await server.start();
  const events: ClientEvent[] = [];
  await using client = new Client({ url: server.url, unreachableAfterMs: 30_000, onEvent: (event) => events.push(event) });
  const permit = await client.acquire("kept", { maximum: 1 });
  const order: string[] = [];
  const wait = async (name: string): Promise<void> => {
    await client.using("kept", { maximum: 1, waitMs: 60_000 }, () => order.push(name));
  };
  const positions = (): number[] => events.flatMap((event) => (event.type === "waiting" ? [event.position] : []));
  const waiting = [wait("second")];
  await eventually("the second has its place", () => positions().includes(1));
  waiting.push(wait("third"));
  await eventually("the third has its place", () => positions().includes(2));
  await server.stop();
  await server.start();
  await eventually("both wait again", async () => (await server.usage("kept")).waiting === 2);
  permit.check();
  assert.equal((await server.usage("kept")).in_use, 1);
  await permit.release();
  await Promise.all(waiting);
  assert.deepEqual(order, ["second", "third"]);
});

test("a server that has forgotten its leases in a restart takes them away", async () => {
  await using server = await Server.start();
  await using client = new Client({ url: server.url });
  const permit = await client.acquire("forgotten", { maximum: 1 });
  const aborted = once(permit.signal, "abort");
  await server.stop();
  await server.start();
  await aborted;
  assert.equal(lossOf(permit)?.reason, "expired");
});

test("more leases than one request renews are kept", async () => {
  await using server = await Server.start();
  const renewed = new Set<number>();
  const onEvent = (event: ClientEvent): unknown => event.type === "renewed" && renewed.add(event.id);
  await using client = new Client({ url: server.url, ttlMs: 3 * TTL_MS, onEvent });
  const permits = await Promise.all(Array.from({ length: 150 }, (_, index) => client.acquire(`many/${index}`, { maximum: 1 })));
  await eventually("all are renewed", () => renewed.size === 150);
  permits.forEach((permit) => permit.check());
});

test("a token is replaced while the client runs", async () => {
  await using server = await Server.start();
  const place = (name: string): string => join(server.directory, name);
  const create = (name: string): string => server.command("token", "create", name, "--rights", "acquire,read", "--file", place("tokens.toml")).trim();
  const rules = `[access]\ntokens = "${place("tokens.toml")}"\nnetworks = ["127.0.0.0/8 none"]\n`;
  const first = create("first");
  chmodSync(place("tokens.toml"), 0o600);
  server.configure(rules);
  await server.stop();
  await server.start();

  const withoutToken = (error: Error): boolean => error instanceof NotPermitted && error.message.includes("SIGNALBOX_TOKEN");
  await assert.rejects(new Client({ url: server.url }).acquire("a", { maximum: 1 }), withoutToken);
  await new Client({ url: server.url, token: `${first}\r\n` }).using("a", { maximum: 1 }, () => undefined);
  for (const wrong of ["", `${first}\n${first}`]) {
    writeFileSync(place("token"), wrong);
    await assert.rejects(new Client({ url: server.url, tokenFile: place("token") }).acquire("a", { maximum: 1 }), Misuse);
  }
  writeFileSync(place("token"), "wrong");
  const renewed: number[] = [];
  const onEvent = (event: ClientEvent): unknown => event.type === "renewed" && renewed.push(event.id);
  await using client = new Client({ url: server.url, tokenFile: place("token"), ttlMs: TTL_MS, onEvent });
  await assert.rejects(client.acquire("a", { maximum: 1 }), NotPermitted);
  writeFileSync(place("token"), first);
  const permit = await client.acquire("a", { maximum: 1 });

  // The server refuses the first token before the client has the second one.
  server.command("token", "revoke", "first", "--file", place("tokens.toml"));
  const second = create("second");
  await server.signal("SIGHUP");
  await eventually("the first is refused", async () => {
    const headers = { Authorization: `Bearer ${first}` };
    return (await fetch(`${server.url}/api/v1/names`, { headers })).status === 401;
  });
  writeFileSync(place("token"), second);
  renewed.length = 0;
  await eventually("the lease is renewed with the second", () => renewed.includes(permit.id));
  permit.check();

  // A client that is no longer permitted loses what it has.
  const aborted = once(permit.signal, "abort");
  server.command("token", "revoke", "second", "--file", place("tokens.toml"));
  await server.signal("SIGHUP");
  await aborted;
  assert.equal(lossOf(permit)?.reason, "not_permitted");
});

/** Runs `program.ts` in a mode, and reads its output. */
function program(mode: string, url: string) {
  const path = fileURLToPath(new URL("./program.js", import.meta.url));
  const child = spawn(process.execPath, [path, mode], { env: { ...process.env, SIGNALBOX_URL: url }, stdio: ["ignore", "pipe", "inherit"] });
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  return {
    child,
    line: async (): Promise<string> => (await lines.next()).value,
    [Symbol.dispose]: () => void child.kill("SIGKILL"),
  };
}

test("a process that was stopped for longer than its lease does not believe in it", async () => {
  await using server = await Server.start();
  await using client = new Client({ url: server.url });
  using checking = program("check", server.url);
  assert.equal(await checking.line(), "held");
  checking.child.kill("SIGSTOP");
  await using _ = await client.acquire("stopped", { maximum: 1, waitMs: 60_000 });
  checking.child.kill("SIGCONT");
  assert.match(await checking.line(), /^lost: /);
});

test("a program that ends does not wait for its permits, and one that releases without waiting does release", async () => {
  await using server = await Server.start();
  for (const [mode, held] of [["forget", 1], ["release", 0], ["cancel", 0]] as const) {
    using ending = program(mode, server.url);
    assert.equal(await ending.line(), "held");
    const code = ending.child.exitCode ?? (await once(ending.child, "exit"))[0];
    assert.equal(code, 0);
    assert.equal((await server.usage(mode)).in_use, held, mode);
  }
});
