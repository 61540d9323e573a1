// Single flight.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Misuse, TimedOut } from "signalbox";

import { eventually, serve } from "./server.js";

const [server, client] = await serve();

test("of those that need a result at once, one makes it", async () => {
  let result: string | undefined;
  let made = 0;
  let finish = (): void => undefined;
  const finished = new Promise<void>((resolve) => (finish = resolve));
  const make = async (): Promise<string> => {
    made++;
    await finished;
    return (result = "made");
  };
  const share = (): Promise<string> => client.share("page", { waitMs: 60_000 }, () => result, make);
  const all = Array.from({ length: 5 }, share);
  await eventually("the others wait", async () => (await server.usage("page")).waiting === 4);
  finish();
  assert.deepEqual(await Promise.all(all), Array(5).fill("made"));
  assert.equal(made, 1);
  assert.equal(await share(), "made");
  await server.free("page");
});

test("a failure passes the work on, and waiting has an end", async () => {
  let result: string | undefined;
  let fail = (): void => undefined;
  const failed = new Promise<void>((_, reject) => (fail = () => reject(new RangeError("of the work"))));
  const failing = assert.rejects(client.share("other", {}, () => result, () => failed.then(() => "never")), RangeError);
  await eventually("one works", async () => (await server.usage("other")).in_use === 1);
  await assert.rejects(client.share("other", { waitMs: 10 }, () => result, () => "early"), TimedOut);
  const next = client.share("other", { waitMs: 60_000 }, () => result, () => (result = "made"));
  await eventually("the other waits", async () => (await server.usage("other")).waiting === 1);
  fail();
  await failing;
  assert.equal(await next, "made");
  await server.free("other");
});

test("only a shared permit is released as done", async () => {
  const permit = await client.acquire("plain", { maximum: 1 });
  await assert.rejects(permit.releaseDone(), Misuse);
  permit.check();
  await permit.release();
  const shared = await client.acquireShared("plain");
  await shared?.releaseDone();
  await server.free("plain");
});
