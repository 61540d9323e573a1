// The client: it passes what the program asks for to its worker thread, and what the worker reports to the program.

import { AsyncResource } from "node:async_hooks";
import { X509Certificate } from "node:crypto";
import { setMaxListeners } from "node:events";
import { readFileSync } from "node:fs";
import { Worker } from "node:worker_threads";

import {
  type AcquireOptions,
  checkedLabel,
  checkedTtl,
  described,
  known,
  type Name,
  type Names,
  type OPTIONS,
  type ShareOptions,
  texts,
  whole,
  wireRequest,
} from "./claims.js";
import type { ClientEvent, Happening } from "./events.js";
import * as failures from "./failures.js";
import type { Command, Report, Settings, WireFailure } from "./messages.js";
import { Permit } from "./permit.js";
import { parseToken } from "./token.js";
import { Validity } from "./validity.js";

/** Options of a client. What is missing is taken from the environment, as stated. */
export interface ClientOptions {
  /**
   * The HTTP listener of the server, such as `http://127.0.0.1:11217`; or those of all nodes of a cluster, which are asked in
   * parallel. `SIGNALBOX_URL`, with commas between several; or else `http://127.0.0.1:11217`.
   */
  readonly url?: string | readonly string[] | undefined;
  /** The token, unless `tokenFile` is given. If neither is: that of `SIGNALBOX_TOKEN_FILE`, or else `SIGNALBOX_TOKEN`. */
  readonly token?: string | undefined;
  /** The file of the token, which is read again every few seconds and after a refusal. */
  readonly tokenFile?: string | undefined;
  /** The token may be sent to other machines without TLS, where others may read it. `SIGNALBOX_TOKEN_OVER_PLAIN=1`. */
  readonly tokenOverPlain?: boolean | undefined;
  /** The file with the certificates of the authorities that have signed the servers', as PEM. `SIGNALBOX_CA`; or else Node's. */
  readonly caFile?: string | undefined;
  /** How long a lease lasts without a renewal, in milliseconds: 1,000 or more; 30,000 unless given. */
  readonly ttlMs?: number | undefined;
  /** A text that operators see in listings. */
  readonly label?: string | undefined;
  /** How long an acquire keeps trying without an answer of any server, in milliseconds; 10,000 unless given. */
  readonly unreachableAfterMs?: number | undefined;
  /** Is called with each event of each permit, in the asynchronous context of its acquire: for logs, metrics and traces. */
  readonly onEvent?: ((event: ClientEvent) => void) | undefined;
}

const CLIENT_OPTIONS: readonly (keyof ClientOptions)[] = [
  "url", "token", "tokenFile", "tokenOverPlain", "caFile", "ttlMs", "label", "unreachableAfterMs", "onEvent",
];

/** An acquire that is under way. */
interface Pending {
  readonly what: string;
  readonly isShared: boolean;
  /** Tells the program what happens to it, and to its permit. */
  tell(event: Happening): void;
  /** `undefined`: another client has made the result of the single flight. */
  resolve(permit: Permit | undefined): void;
  reject(error: unknown): void;
}

/**
 * A client of signalbox. A program needs one, which has one thread and a few connections for all permits. The thread does not keep
 * the process alive, except for acquires and releases that are under way.
 */
export class Client {
  readonly #settings: Settings;
  readonly #ttlMs: number;
  readonly #label: string | undefined;
  readonly #onEvent: ((event: ClientEvent) => void) | undefined;
  readonly #pending = new Map<number, Pending>();
  readonly #permits = new Map<number, Permit>();
  readonly #releases = new Map<number, { promise: Promise<void>; resolve: () => void }>();
  #worker: Worker | undefined;
  #lastId = 0;
  #isClosed = false;

  /** @throws Misuse, if an option or a variable of the environment is wrong */
  constructor(options: ClientOptions = {}) {
    known("the client", options, CLIENT_OPTIONS);
    const { env } = process;
    const { token, tokenFile } = tokenOf(options);
    const mayBePlain = !(token || tokenFile) || options.tokenOverPlain || env["SIGNALBOX_TOKEN_OVER_PLAIN"] === "1";
    this.#settings = {
      urls: urls(options.url ?? (env["SIGNALBOX_URL"] || "http://127.0.0.1:11217"), mayBePlain),
      token,
      tokenFile,
      ca: certificates(options.caFile ?? (env["SIGNALBOX_CA"] || undefined)),
      unreachableAfterMs: whole("unreachableAfterMs", options.unreachableAfterMs) ?? 10_000,
      reportsRenewals: options.onEvent !== undefined,
    };
    this.#ttlMs = checkedTtl(options.ttlMs) ?? 30_000;
    this.#label = checkedLabel(options.label);
    this.#onEvent = options.onEvent;
  }

  /**
   * Acquires a name, or all of several names.
   *
   * ```ts
   * await using permit = await client.acquire("gpu", { maximum: 4, waitMs: 60_000 });
   * ```
   *
   * @throws Busy, TimedOut, QueueFull, Unreachable, NotPermitted, Misuse; Lost, if an administrator ends the wait; the reason of
   * `options.signal`
   */
  async acquire(names: Names, options: AcquireOptions = {}): Promise<Permit> {
    // Only a request of a single flight has another answer.
    return (await this.#acquire("acquire", names, options)) as Permit;
  }

  #acquire(caller: keyof typeof OPTIONS, names: Names, options: AcquireOptions): Promise<Permit | undefined> {
    return new Promise((resolve, reject) => {
      if (this.#isClosed) {
        throw new failures.Misuse("the client was closed; make another one");
      }
      const request = wireRequest(caller, names, options, this.#ttlMs, this.#label);
      const { signal } = options;
      signal?.throwIfAborted();
      this.#worker ??= this.#start();
      const id = ++this.#lastId;
      const settled = (): void => {
        this.#pending.delete(id);
        signal?.removeEventListener("abort", cancel);
      };
      const cancel = (): void => {
        settled();
        void this.#release(id, false);
        reject(signal?.reason);
      };
      if (signal !== undefined) {
        // Many acquires may wait with the signal of the program's end; that is not the leak that Node warns of.
        setMaxListeners(0, signal);
        signal.addEventListener("abort", cancel);
      }
      this.#pending.set(id, {
        what: described(names),
        isShared: caller === "share",
        tell: this.#teller(id, names),
        resolve(permit) {
          settled();
          resolve(permit);
        },
        reject(error) {
          settled();
          reject(error);
        },
      });
      this.#send({ do: "acquire", id, request });
    });
  }

  /**
   * Like `acquire`, but without waiting; `undefined`, if what is requested is in use.
   *
   * @throws as `acquire`, except for Busy
   */
  async tryAcquire(names: Names, options: Omit<AcquireOptions, "waitMs" | "queueMax"> = {}): Promise<Permit | undefined> {
    try {
      return (await this.#acquire("tryAcquire", names, options)) as Permit;
    } catch (error) {
      if (error instanceof failures.Busy) {
        return undefined;
      }
      throw error;
    }
  }

  /**
   * Acquires, works and releases. The work should stop when `permit.signal` is aborted; this waits for it in any case.
   *
   * ```ts
   * await client.using("gpu", { maximum: 4, waitMs: 60_000 }, (permit) => train({ signal: permit.signal }));
   * ```
   *
   * @returns what the work returns
   * @throws as `acquire`; what the work throws; Lost, if the work returns after the permit was lost
   */
  async using<T>(names: Names, options: AcquireOptions, work: (permit: Permit) => T | Promise<T>): Promise<T> {
    mustBeFunctions("using(names, options, work)", work);
    const permit = await this.acquire(names, options);
    try {
      const result = await work(permit);
      permit.checkAtEnd();
      return result;
    } finally {
      await permit.release();
    }
  }

  /**
   * Acquires a name for a single flight, for programs that do not use `share`.
   *
   * @returns a permit to make the result with, which ends with `releaseDone`; `undefined`, if another client has made the result while
   * this one waited, so that nothing is held
   * @throws as `acquire`
   */
  acquireShared(name: Name, options: ShareOptions = {}): Promise<Permit | undefined> {
    return this.#acquire("share", name, options);
  }

  /**
   * A single flight: of many clients that need the same result, one makes it, and the others wait until it is there.
   *
   * ```ts
   * const page = await client.share("page/42", { waitMs: 10_000 }, () => cache.get("page/42"), async () => {
   *   const page = await render(42);
   *   await cache.set("page/42", page);
   *   return page;
   * });
   * ```
   *
   * @param find looks for the result; `undefined`, if it is not there
   * @param make makes the result, and puts it where `find` looks
   * @returns what `find` or `make` returns
   * @throws as `acquire`; what `find` or `make` throws, whereupon another client makes the result
   */
  async share<T>(
    name: Name,
    options: ShareOptions,
    find: () => T | undefined | Promise<T | undefined>,
    make: (permit: Permit) => T | Promise<T>,
  ): Promise<T> {
    mustBeFunctions("share(name, options, find, make)", find, make);
    for (;;) {
      const found = await find();
      if (found !== undefined) {
        return found;
      }
      const permit = await this.acquireShared(name, options);
      if (permit === undefined) {
        continue;
      }
      try {
        // Another client may have made it between the two.
        const found = await find();
        const result = found === undefined ? await make(permit) : found;
        await permit.releaseDone();
        return result;
      } finally {
        await permit.release();
      }
    }
  }

  /** Gives all acquires up, releases all permits and ends the thread. It takes some seconds at most. */
  async close(): Promise<void> {
    this.#isClosed = true;
    for (const permit of [...this.#permits.values()]) {
      void permit.release();
    }
    for (const [id, { what, reject }] of [...this.#pending]) {
      reject(new failures.Misuse(`${what}: the client was closed`));
      void this.#release(id, false);
    }
    // Also those that were under way before.
    await Promise.all([...this.#releases.values()].map(({ promise }) => promise));
    await this.#worker?.terminate();
  }

  /** `close`, at the end of the block of `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #send(command: Command): void {
    this.#worker?.postMessage(command);
    this.#hold();
  }

  #start(): Worker {
    const worker = new Worker(new URL("./worker/worker.js", import.meta.url), {
      name: "signalbox",
      workerData: this.#settings,
      // Options such as --inspect-brk and --import are the program's.
      execArgv: [],
    });
    worker.on("message", (report: Report) => this.#receive(report));
    worker.on("error", (error) => this.#fail(worker, error));
    worker.on("exit", () => this.#fail(worker, new Error("the thread of the client has ended")));
    return worker;
  }

  /** Keeps the process alive while it waits for the worker. */
  #hold(): void {
    if (this.#pending.size + this.#releases.size > 0) {
      this.#worker?.ref();
    } else {
      this.#worker?.unref();
    }
  }

  #receive(report: Report): void {
    const { id } = report;
    const permit = this.#permits.get(id);
    switch (report.is) {
      case "waiting":
        this.#pending.get(id)?.tell({ type: "waiting", position: report.position });
        break;
      case "held": {
        const pending = this.#pending.get(id);
        if (pending !== undefined) {
          this.#hand(id, pending, report);
        }
        break;
      }
      case "done":
        this.#pending.get(id)?.resolve(undefined);
        break;
      case "failed": {
        const pending = this.#pending.get(id);
        pending?.reject(failure(pending.what, report.failure));
        break;
      }
      case "renewed":
        permit?.tell({ type: "renewed" });
        break;
      case "revoking":
        permit?.lose("revoked");
        permit?.tell({ type: "revoking", graceMs: report.graceMs });
        break;
      case "lost":
        permit?.lose(report.reason);
        this.#permits.delete(id);
        permit?.tell({ type: "lost", reason: report.reason });
        break;
      case "released":
        this.#releases.get(id)?.resolve();
        break;
    }
    this.#hold();
  }

  #hand(id: number, { what, isShared, tell, resolve }: Pending, held: { fence: string; slots: number[][]; validity: SharedArrayBuffer }): void {
    const holder = {
      isShared,
      tell,
      release: (id: number, done: boolean) => {
        if (this.#permits.delete(id)) {
          tell({ type: "released" });
        }
        return this.#release(id, done);
      },
      expire: (id: number) => {
        this.#permits.delete(id);
        tell({ type: "lost", reason: "expired" });
        this.#send({ do: "expire", id });
      },
    };
    const permit = new Permit(id, what, BigInt(held.fence), held.slots, new Validity(held.validity), holder);
    this.#permits.set(id, permit);
    tell({ type: "acquired", fence: permit.fence });
    resolve(permit);
  }

  /** Tells the worker to release, and waits for it. */
  #release(id: number, done: boolean): Promise<void> {
    if (this.#worker === undefined) {
      return Promise.resolve();
    }
    let resolve = (): void => undefined;
    const promise = new Promise<void>((released) => {
      resolve = () => {
        this.#releases.delete(id);
        released();
      };
    });
    this.#releases.set(id, { promise, resolve });
    this.#send({ do: "release", id, done });
    return promise;
  }

  /** A worker has ended, and renews nothing from now on. The next acquire starts another one. */
  #fail(worker: Worker, error: unknown): void {
    if (this.#worker !== worker) {
      return;
    }
    this.#worker = undefined;
    for (const permit of this.#permits.values()) {
      permit.lose("stopped");
      permit.tell({ type: "lost", reason: "stopped" });
    }
    this.#permits.clear();
    for (const { reject } of [...this.#pending.values()]) {
      reject(error);
    }
    for (const { resolve } of [...this.#releases.values()]) {
      resolve();
    }
  }

  #teller(id: number, names: Names): (event: Happening) => void {
    const onEvent = this.#onEvent;
    if (onEvent === undefined) {
      return () => {};
    }
    // An exception of the listener goes to the program, and disturbs nothing here.
    return AsyncResource.bind((event) => queueMicrotask(() => onEvent({ id, names: texts(names), ...event })));
  }
}

/** A program without types may leave the options out. */
function mustBeFunctions(form: string, ...given: unknown[]): void {
  if (given.some((each) => typeof each !== "function")) {
    throw new failures.Misuse(`an argument is missing; use ${form}, with {} for no options`);
  }
}

/** The token or its file: those of the program, or else those of the environment. */
function tokenOf({ token, tokenFile }: ClientOptions): { token: string | undefined; tokenFile: string | undefined } {
  const { env } = process;
  if (token !== undefined && tokenFile !== undefined) {
    throw new failures.Misuse("token and tokenFile are both given; use one of them");
  }
  if (token === undefined && tokenFile === undefined) {
    tokenFile = env["SIGNALBOX_TOKEN_FILE"] || undefined;
    token = tokenFile === undefined ? env["SIGNALBOX_TOKEN"] : undefined;
  }
  return { token: token === undefined || token === "" ? undefined : parseToken(token), tokenFile };
}

function failure(what: string, { kind, message, code }: WireFailure): failures.Failure {
  const text = `${what}: ${message}`;
  return kind === "Lost" ? new failures.Lost("revoked", text, code) : new failures[kind](text, code);
}

function urls(given: string | readonly string[], mayBePlain: boolean): string[] {
  const texts = [given].flat().flatMap((text) => String(text).split(",")).map((text) => text.trim());
  if (texts.length === 0) {
    throw new failures.Misuse("url is an empty list; give the URL of each node");
  }
  for (const text of texts) {
    const { protocol, hostname = "", port, username, password, search, hash } = URL.canParse(text) ? new URL(text) : {};
    if ((protocol !== "http:" && protocol !== "https:") || port === "0" || username || password || search || hash) {
      const shown = text.replace(/^(.*\/\/)?[^/]*@/, "$1…@"); // Without a password.
      const rule = "it has http:// or https://, a host and a port, and no user, as http://127.0.0.1:11217";
      throw new failures.Misuse(`the URL "${shown}" is wrong; ${rule}`);
    }
    if (protocol === "http:" && !mayBePlain && !/^(localhost|127(\.\d+){3}|\[::1\])$/.test(hostname)) {
      throw new failures.Misuse(`the token is not sent to "${text}" without TLS, where others may read it; use https, or tokenOverPlain`);
    }
  }
  return texts;
}

function certificates(file: string | undefined): string | undefined {
  if (file === undefined) {
    return undefined;
  }
  try {
    const text = readFileSync(file, "utf8");
    new X509Certificate(text); // Node ignores a text that has none.
    return text;
  } catch (error) {
    throw new failures.Misuse(`the authorities' certificates cannot be read from "${file}": ${(error as Error).message}`);
  }
}
