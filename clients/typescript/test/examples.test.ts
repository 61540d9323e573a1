// The examples, and the code of README.md, run as they are.

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { type Database, Overtaken, publish } from "../examples/fencing.js";
import { serve } from "./server.js";

const [server, client] = await serve();

const path = (example: string): string => fileURLToPath(new URL(`../examples/${example}.js`, import.meta.url));
const environment = (): NodeJS.ProcessEnv => ({ ...process.env, SIGNALBOX_URL: server.url });

async function output(example: string, ...options: string[]): Promise<string[]> {
  const { stdout } = await promisify(execFile)(process.execPath, [path(example), ...options], { env: environment() });
  return stdout.trim().split("\n");
}

test("a job of cron runs on one machine", async () => {
  assert.deepEqual(await output("nightly"), ["writing sales", "writing stock"]);
  await using _ = await client.acquire("nightly-report", { maximum: 1 });
  assert.deepEqual(await output("nightly"), ["another machine writes the report"]);
});

test("a pool of workers", async () => {
  const lines = await output("worker_pool");
  assert.equal(lines.filter((line) => /^job \d: done for (blue|green)$/.test(line)).length, 5);
});

test("slots", async () => {
  server.command("declare", "gpu", "--capacity", "1", "--slots");
  assert.deepEqual(await output("slots"), ["CUDA_VISIBLE_DEVICES=0 train"]);
});

test("several names", async () => {
  assert.equal((await output("several")).length, 1);
});

test("one of many fills a cache", async () => {
  const file = join(server.directory, "page.html");
  const pages = await Promise.all([1, 2, 3].map(() => output("cache", file)));
  assert.equal(new Set(pages.flat()).size, 1);
});

test("a leader is followed by another one", async () => {
  const start = (label: string) => {
    const child = spawn(process.execPath, [path("leader"), label], { env: environment(), stdio: ["ignore", "pipe", "inherit"] });
    const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
    return { child, line: async () => (await lines.next()).value, [Symbol.dispose]: () => void child.kill("SIGKILL") };
  };
  using first = start("first");
  assert.equal(await first.line(), "leading");
  using second = start("second");
  first.child.kill("SIGTERM");
  assert.equal(await second.line(), "leading");
  server.command("revoke", "--client", "127.0.0.0/8", "--grace", "0");
  assert.match(await second.line(), /^no longer leading: /);
  assert.equal(await second.line(), "leading");
  second.child.kill("SIGTERM");
  await once(second.child, "exit");
});

/** SQLite, which Python has. */
const SQLITE = `
import json, sqlite3, sys
database = sqlite3.connect(":memory:")
for line in sys.stdin:
    sql, values = json.loads(line)
    print(database.execute(sql, {str(index + 1): value for index, value in enumerate(values)}).rowcount, flush=True)
`;

test("a table refuses a writer that was overtaken", async () => {
  const sqlite = spawn("python3", ["-c", SQLITE], { stdio: ["pipe", "pipe", "inherit"] });
  const lines = createInterface(sqlite.stdout)[Symbol.asyncIterator]();
  const database: Database = {
    async query(sql, values) {
      sqlite.stdin.write(`${JSON.stringify([sql, values])}\n`);
      return { rowCount: Number((await lines.next()).value) };
    },
  };
  await database.query("CREATE TABLE report (name TEXT PRIMARY KEY, text TEXT, fence BIGINT NOT NULL)", []);
  await database.query("INSERT INTO report VALUES ('daily', '', 0)", []);
  const first = await client.acquire("report", { maximum: 1 });
  await publish(database, first, "daily", "first");
  await publish(database, first, "daily", "first, corrected");
  await first.release();
  await using second = await client.acquire("report", { maximum: 1 });
  await publish(database, second, "daily", "second");
  await assert.rejects(publish(database, first, "daily", "late"), Overtaken);
  sqlite.stdin.end();
});
