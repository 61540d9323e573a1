// Acquire and release: what is granted, what is refused, and what is left behind.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:http";
import { type AddressInfo } from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { Busy, Client, type ClientEvent, Lost, Misuse, type Permit, QueueFull, TimedOut, Unreachable } from "signalbox";

import { eventually, Proxy, serve, Server } from "./server.js";

const [server, client] = await serve();

test("a permit holds until it is released, which can be repeated", async () => {
  const permit = await client.acquire("held", { maximum: 2, resources: 2 });
  permit.check();
  assert.ok(permit.timeLeftMs > 20_000 && permit.timeLeftMs <= 28_800);
  assert.deepEqual(permit.slots, []);
  assert.equal((await server.usage("held")).in_use, 2);
  const { signal } = permit;
  await Promise.all([permit.release(), permit.release()]);
  await permit.release();
  assert.equal((await server.usage("held")).in_use, 0);
  assert.equal(permit.timeLeftMs, 0);
  assert.throws(() => permit.check(), (error) => error instanceof Lost && error.reason === "released");
  assert.ok(!signal.aborted, "a release is not a loss");
});

test("leaving a block releases, and fences grow", async () => {
  let fence: bigint;
  {
    await using permit = await client.acquire("block", { maximum: 1 });
    ({ fence } = permit);
  }
  const greater = await client.using("block", { maximum: 1 }, (permit) => permit.fence);
  assert.ok(greater > fence);
  await assert.rejects(
    client.using("block", { maximum: 1 }, () => {
      throw new RangeError("of the work");
    }),
    RangeError,
  );
  assert.equal((await server.usage("block")).in_use, 0);
});

test("what is in use is refused, with a failure for each reason", async () => {
  await using _ = await client.acquire("full", { maximum: 1 });
  await assert.rejects(client.acquire("full", { maximum: 1 }), Busy);
  assert.equal(await client.tryAcquire("full", { maximum: 1 }), undefined);
  await assert.rejects(client.acquire("full", { maximum: 1, waitMs: 10 }), TimedOut);
  const waits = new AbortController();
  const waiting = client.acquire("full", { maximum: 1, waitMs: Infinity, signal: waits.signal });
  await eventually("it waits", async () => (await server.usage("full")).waiting === 1);
  await assert.rejects(client.acquire("full", { maximum: 1, waitMs: 1000, queueMax: 1 }), QueueFull);
  waits.abort();
  await assert.rejects(waiting, { name: "AbortError" });
});

test("what makes no sense is a misuse", async () => {
  await assert.rejects(client.acquire("undeclared"), (error) => error instanceof Misuse && error.code === "not_found");
  await assert.rejects(client.acquire("", { maximum: 1 }), Misuse);
  await assert.rejects(client.acquire("a", { maximum: 1.5 }), Misuse);
  await assert.rejects(client.acquire("a", { maximum: 1, waitMs: NaN }), Misuse);
  await assert.rejects(client.acquire("a", { maximum: 1, ttlMs: -1 }), Misuse);
  await assert.rejects(client.acquire(["a", "b"], { maximum: 1 }), Misuse);
  await assert.rejects(client.acquire([]), Misuse);
  await assert.rejects(client.acquire("a", { maximum: 1, resources: 2 }), Misuse);
  for (const options of [{ maximum: 0 }, { maximum: 1, resources: 0 }, { maximum: 1, ttlMs: 0 }, { maximum: 1, ttlMs: 999 }]) {
    await assert.rejects(client.acquire("a", options), (error) => error instanceof Misuse && error.code === undefined);
  }
  assert.throws(() => new Client({ url: "127.0.0.1:11217" }), Misuse);
  assert.throws(() => new Client({ url: [] }), Misuse);
  for (const url of ["http://user:secret@a", "http://user:secret@a:b", "http://a?b", "http://a/#b", "http://a:0", "http:///"]) {
    assert.throws(() => new Client({ url }), (error) => error instanceof Misuse && !error.message.includes("secret"), url);
  }
  const elsewhere = new Client({ url: `${server.url}/elsewhere` });
  await assert.rejects(elsewhere.acquire("a", { maximum: 1 }), (error) => error instanceof Misuse && error.message.includes("/elsewhere"));
  await elsewhere.close();
  assert.throws(() => new Client({ caFile: "/nowhere" }), Misuse);
  assert.throws(() => new Client({ caFile: fileURLToPath(import.meta.url) }), Misuse);
  assert.throws(() => new Client({ ttlMs: 30 }), Misuse);
});

test("a program without types is told what it gives", async () => {
  const untyped = client as any;
  const work = (): void => undefined;
  for (const given of [undefined, null, 7, {}, [undefined], [{}], [["a"]]]) {
    await assert.rejects(untyped.acquire(given, { maximum: 1 }), Misuse);
  }
  for (const options of [{ maximum: 1, wait: 5 }, "a", null, work, { maximum: 1, signal: 1 }, { maximum: 1, label: 1 }]) {
    await assert.rejects(untyped.acquire("a", options), Misuse);
  }
  await assert.rejects(untyped.acquire([{ name: "a", max: 1, maximum: 1 }]), Misuse);
  await assert.rejects(untyped.tryAcquire("a", { maximum: 1, waitMs: 1 }), Misuse);
  await assert.rejects(untyped.acquireShared("a", { maximum: 3 }), Misuse);
  await assert.rejects(untyped.using("a", work), (error) => error instanceof Misuse && error.message.includes("using"));
  await assert.rejects(untyped.share("a", work, work), (error) => error instanceof Misuse && error.message.includes("share"));
  for (const options of [server.url, null, { urls: server.url }]) {
    assert.throws(() => new Client(options as any), Misuse);
  }
  // What is not given.
  await (await untyped.tryAcquire("a", { maximum: 1, waitMs: undefined })).release();
});

test("a failure says how long it took", async () => {
  await using _ = await client.acquire("long", { maximum: 1 });
  await assert.rejects(client.acquire("long", { maximum: 1, waitMs: 60 }), /60 ms/);
  await using nowhere = new Client({ url: "http://127.0.0.99", unreachableAfterMs: 1 });
  await assert.rejects(nowhere.acquire("long", { maximum: 1 }), (error: Error) =>
    error instanceof Unreachable && ["11217", "nothing is held", " s,"].every((part) => error.message.includes(part)));
});

test("a server that cannot be the right one is not tried again", async () => {
  const secure = (url: string): string => url.replace("http:", "https:");
  for (const url of [server.counterUrl, secure(server.counterUrl), secure(server.url)]) {
    await using wrong = new Client({ url, unreachableAfterMs: 3_600_000 });
    await assert.rejects(wrong.acquire("a", { maximum: 1, signal: AbortSignal.timeout(30_000) }), (error: Error) =>
      error instanceof Misuse && error.message.includes("--http-port") && !error.message.includes("\n"));
  }
  await using several = new Client({ url: [server.counterUrl, server.url] });
  await several.using("a", { maximum: 1 }, () => undefined);
});

test("an answer that is none of signalbox is no answer", async () => {
  const answers = [
    [200, {}],
    [200, []],
    [200, { state: "other", valid_ms: 1000, grant: "1" }],
    [302, {}],
  ] as const;
  for (const [status, body] of answers) {
    let asked = 0;
    const other = createServer((request, response) => {
      asked += Number(request.url?.endsWith("/acquire"));
      response.writeHead(status).end(JSON.stringify(body));
    }).listen(0, "127.0.0.1");
    await once(other, "listening");
    const url = `http://127.0.0.1:${(other.address() as AddressInfo).port}`;
    await using client = new Client({ url, unreachableAfterMs: 1_000 });
    await assert.rejects(client.acquire("a", { maximum: 1, waitMs: 3_600_000 }), Unreachable);
    assert.ok(asked > 1 && asked < 30, `asked ${asked} times`);
    other.closeAllConnections();
    other.close();
  }
});

test("several names are granted all or none", async () => {
  const names = [{ name: "first", maximum: 1 }, { name: new Uint8Array([0xff]), maximum: 2, resources: 2 }];
  const permit = await client.acquire(names);
  assert.equal(permit.what, 'limits "first", "ÿ"');
  await assert.rejects(client.acquire([{ name: "other", maximum: 1 }, ...names]), Busy);
  assert.equal((await server.usage("other")).in_use, 0);
  await permit.release();
});

test("slots have numbers", async () => {
  server.command("declare", "gpu", "--capacity", "2", "--slots");
  const permits = await Promise.all([client.acquire("gpu"), client.acquire("gpu")]);
  assert.deepEqual(permits.map((permit) => permit.slots[0]?.[0]).sort(), [0, 1]);
  await Promise.all(permits.map((permit) => permit.release()));
  const wanted = await client.acquire("gpu", { slot: 1 });
  assert.deepEqual(wanted.slots, [[1]]);
  await wanted.release();
});

test("waiting requests are served in order, and told their positions", async () => {
  const events: ClientEvent[] = [];
  await using client = new Client({ url: server.url, label: "in order", onEvent: (event) => events.push(event) });
  const first = await client.acquire("queue", { maximum: 1 });
  const order: string[] = [];
  const wait = async (name: string): Promise<void> => {
    const permit = await client.acquire("queue", { maximum: 1, waitMs: 60_000 });
    order.push(name);
    await permit.release();
  };
  const waiting = [wait("second")];
  await eventually("the second waits", async () => (await server.usage("queue")).waiting === 1);
  waiting.push(wait("third"));
  await eventually("both know their positions", () => {
    const positions = events.flatMap((event) => (event.type === "waiting" ? [event.position] : []));
    return positions.includes(1) && positions.includes(2);
  });
  assert.match(server.command("sessions"), /in order/);
  await first.release();
  await Promise.all(waiting);
  assert.deepEqual(order, ["second", "third"]);
  const ofFirst = events.filter((event) => event.id === first.id).map((event) => event.type);
  assert.deepEqual(ofFirst.filter((type) => type !== "renewed"), ["acquired", "released"]);
});

test("an acquire that is given up leaves nothing behind, whatever it waits for", async () => {
  await using proxy = await Proxy.start(server.url);
  await using client = new Client({ url: proxy.url });
  const acquire = (signal: AbortSignal, waitMs = 0): Promise<Permit> => client.acquire("given-up", { maximum: 1, waitMs, signal });
  const reason = new Error("given up");

  // Before it is sent.
  await assert.rejects(acquire(AbortSignal.abort(reason)), reason);

  // Before the thread has seen it.
  let canceled = new AbortController();
  let acquiring = acquire(canceled.signal);
  canceled.abort(reason);
  await assert.rejects(acquiring, reason);
  await server.free("given-up");

  // Granted, and the answer is on its way.
  proxy.keeps = (path) => path.endsWith("/acquire");
  canceled = new AbortController();
  acquiring = acquire(canceled.signal);
  await eventually("it is granted", () => proxy.kept.length > 0);
  assert.equal((await server.usage("given-up")).in_use, 1);
  canceled.abort(reason);
  await assert.rejects(acquiring, reason);
  await server.free("given-up");

  // Between two attempts.
  canceled = new AbortController();
  proxy.kept.length = 0;
  acquiring = acquire(canceled.signal);
  await eventually("it is repeated", () => proxy.kept.length > 1);
  canceled.abort(reason);
  await assert.rejects(acquiring, reason);
  await server.free("given-up");
  proxy.keeps = () => false;

  // In the queue.
  const holder = await client.acquire("given-up", { maximum: 1 });
  canceled = new AbortController();
  acquiring = acquire(canceled.signal, 60_000);
  await eventually("it waits", async () => (await server.usage("given-up")).waiting === 1);
  canceled.abort(reason);
  await assert.rejects(acquiring, reason);
  await eventually("it has left the queue", async () => (await server.usage("given-up")).waiting === 0);
  await holder.release();

  // Granted, when the program knows it already: a permit is not released by the signal of its acquire.
  canceled = new AbortController();
  const permit = await acquire(canceled.signal);
  canceled.abort(reason);
  permit.check();
  await permit.release();
  await server.free("given-up");
});

test("an acquire whose answers are lost is granted once, and a release whose answers are lost is repeated", async () => {
  await using proxy = await Proxy.start(server.url);
  await using client = new Client({ url: proxy.url });
  proxy.keeps = () => proxy.kept.length < 1;
  const permit = await client.acquire("lost-answer", { maximum: 1 });
  assert.equal((await server.usage("lost-answer")).in_use, 1);
  assert.ok(permit.timeLeftMs > 0);
  proxy.kept.length = 0;
  proxy.keeps = (path) => path.endsWith("/release") && proxy.kept.length < 1;
  await permit.release();
  assert.ok(proxy.kept.length === 1);
  assert.equal((await server.usage("lost-answer")).in_use, 0);
});

test("no server is a failure after unreachableAfterMs, and a release returns all the same", async () => {
  const gone = await Server.start();
  await using client = new Client({ url: gone.url, unreachableAfterMs: 200 });
  const permit = await client.acquire("a", { maximum: 1 });
  await gone.stop();
  await assert.rejects(client.acquire("a", { maximum: 1, waitMs: 60_000 }), Unreachable);
  await permit.release();
  await gone[Symbol.asyncDispose]();
});

test("several servers are tried beside each other", async () => {
  await using first = await Server.start();
  await using second = await Server.start();
  await second.stop();
  await using client = new Client({ url: [first.url, second.url] });
  await client.using("several", { maximum: 1 }, () => undefined);
  await second.start();
  await first.signal("SIGSTOP");
  const permit = await client.acquire("several", { maximum: 1 });
  assert.equal((await second.usage("several")).in_use, 1);
  await permit.release();
});

test("a server that is asked because another one is late has to answer at once", async () => {
  await using first = await Server.start();
  const asked: string[] = [];
  const second = createServer(async (request, response) => {
    asked.push(String(await request.toArray()));
    response.writeHead(503).end('{"error": {"code": "not_serving", "message": "it does not lead"}}');
  }).listen(0, "127.0.0.1");
  await once(second, "listening");
  await using client = new Client({ url: [first.url, `http://127.0.0.1:${(second.address() as AddressInfo).port}`] });
  await client.acquire("late", { maximum: 1, ttlMs: 3_000 });
  asked.length = 0;
  await first.signal("SIGSTOP");
  await eventually("the second one is asked", () => asked.length > 0);
  await first.signal("SIGCONT");
  second.close();
  assert.doesNotMatch(asked.join(), /poll_ms/);
});

/** Makes a certificate that has signed itself, as a part of a server's configuration, and returns its file. */
function certify(server: Server, file: string, subject: string): string {
  const place = (end: string): string => join(server.directory, file + end);
  const options = `req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=test -addext subjectAltName=${subject}`;
  execFileSync("openssl", [...options.split(" "), "-keyout", place(".key"), "-out", place(".pem")], { stdio: "ignore" });
  server.configure(`[tls]\ncert = "${place(".pem")}"\nkey = "${place(".key")}"\n`);
  return place(".pem");
}

test("a server with TLS is trusted by the certificate of its authority, and no other one is asked again", async () => {
  await using secure = await Server.start();
  const refuses = async (url: string | string[], caFile?: string): Promise<void> => {
    await using client = new Client({ url, ...(caFile && { caFile }), unreachableAfterMs: 3_600_000 });
    await assert.rejects(client.acquire("secure", { maximum: 1 }), (error) => error instanceof Unreachable && /certificate/.test(error.message));
  };
  const other = certify(secure, "other", "IP:192.0.2.1");
  await secure.stop();
  await secure.start();
  const url = secure.url.replace("http:", "https:");
  await refuses(url, other);
  const authority = certify(secure, "right", "IP:127.0.0.1");
  await secure.stop();
  await secure.start();
  await using trusting = new Client({ url, caFile: authority });
  await trusting.using("secure", { maximum: 1 }, (permit) => permit.check());
  await refuses(url, other);
  await refuses([url, `${url}/elsewhere`]);
});

test("a server without room is not unreachable", async () => {
  await using full = await Server.start("[session]\nmax_sessions = 1\n");
  const options = { unreachableAfterMs: 1_000 };
  await using client = new Client({ ...options, url: full.url });
  await using _ = await client.acquire("full", { maximum: 1 });
  const refused = (error: unknown): boolean => error instanceof Busy && error.code === "limit_reached" && /max_sessions/.test(error.message);
  await assert.rejects(client.acquire("other", { maximum: 1 }), refused);
  await using several = new Client({ ...options, url: ["http://127.0.0.1:1", full.url] });
  await assert.rejects(several.acquire("other", { maximum: 1 }), refused);
});

test("a client that is closed gives up and releases everything", async () => {
  const client = new Client({ url: server.url });
  await client.acquire("closed", { maximum: 1 });
  const waiting = assert.rejects(client.acquire("closed", { maximum: 1, waitMs: 60_000 }), Misuse);
  await eventually("it waits", async () => (await server.usage("closed")).waiting === 1);
  await client.close();
  await waiting;
  await server.free("closed");
  await assert.rejects(client.acquire("closed", { maximum: 1 }), Misuse);
});

test("closing a client waits for what it releases and gives up already", async () => {
  const begun: Record<string, (client: Client, permit: Permit) => void> = {
    "a release": (_, permit) => void permit.release(),
    "another close": (client) => void client.close(),
  };
  for (const [what, begin] of Object.entries(begun)) {
    const client = new Client({ url: server.url });
    begin(client, await client.acquire("closing", { maximum: 1 }));
    await client.close();
    assert.equal((await server.usage("closing")).in_use, 0, what);
  }

  await using holding = new Client({ url: server.url });
  await holding.acquire("closing", { maximum: 1 });
  const client = new Client({ url: server.url });
  const canceled = new AbortController();
  const acquiring = assert.rejects(client.acquire("closing", { maximum: 1, waitMs: 60_000, signal: canceled.signal }));
  await eventually("it waits", async () => (await server.usage("closing")).waiting === 1);
  canceled.abort();
  await client.close();
  await acquiring;
  assert.equal((await server.usage("closing")).waiting, 0);
});

test("what the program gives comes before the environment", (context) => {
  assert.throws(() => new Client({ token: "secret", tokenFile: "token" }), Misuse);
  for (const token of ["sec\nret", "\n", "\u20ac"]) {
    assert.throws(() => new Client({ token }), (error) => error instanceof Misuse && !error.message.includes("ret"));
  }
  context.after(() => delete process.env["SIGNALBOX_TOKEN"]);
  process.env["SIGNALBOX_TOKEN"] = "sec\nret";
  assert.throws(() => new Client({}), Misuse);
  new Client({ token: "of the program\r\n" });
  new Client({ token: "" });
});

test("a token is not sent to other machines without TLS", () => {
  for (const host of ["192.0.2.1", "localhost.example.org", "127.example.org", "[::2]"]) {
    const url = `http://${host}:11217`;
    assert.throws(() => new Client({ url, token: "secret" }), Misuse);
    assert.throws(() => new Client({ url, tokenFile: "token" }), Misuse);
    new Client({ url, token: "secret", tokenOverPlain: true });
    new Client({ url });
  }
  for (const url of ["https://192.0.2.1", "http://localhost:11217", "http://127.0.0.2:11217", "http://[::1]:11217"]) {
    new Client({ url, token: "secret" });
  }
});
