// A real server on any free ports of loopback, and what stands between it and a client in some tests.

import { execFileSync, type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import * as http from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { Client } from "signalbox";

/** The program; the one that `cargo build` makes unless SIGNALBOX_BIN names another. */
export const SIGNALBOX = process.env["SIGNALBOX_BIN"] ?? fileURLToPath(new URL("../../../../target/debug/signalbox", import.meta.url));

/** The longest that a test waits for what has to happen. */
const PATIENCE_MS = 30_000;

/** Waits for a condition. */
export async function eventually(what: string, condition: () => boolean | Promise<boolean>): Promise<void> {
  const end = Date.now() + PATIENCE_MS;
  while (!(await condition())) {
    if (Date.now() > end) {
      throw new Error(`never: ${what}`);
    }
    await sleep(10);
  }
}

/** A server, and a client of it, for all tests of a file. They end after the last one. */
export async function serve(): Promise<[Server, Client]> {
  const server = await Server.start();
  const client = new Client({ url: server.url });
  after(async () => {
    await client.close();
    await server[Symbol.asyncDispose]();
  });
  return [server, client];
}

export class Server implements AsyncDisposable {
  readonly directory = mkdtempSync(join(tmpdir(), "signalbox-"));
  #process: ChildProcess | undefined;
  #ports = { counter: "0", semaphore: "0", http: "0" };

  /** Starts a server with further lines of a configuration file. */
  static async start(lines = ""): Promise<Server> {
    const server = new Server();
    server.configure(lines);
    await server.start();
    return server;
  }

  get url(): string {
    return `http://127.0.0.1:${this.#ports.http}`;
  }

  /** A URL of the port for counters, which does not speak HTTP. */
  get counterUrl(): string {
    return `http://127.0.0.1:${this.#ports.counter}`;
  }

  configure(lines: string): void {
    writeFileSync(join(this.directory, "signalbox.toml"), lines);
  }

  /** Starts the process; a second time, on the same ports. */
  async start(): Promise<void> {
    const { counter, semaphore, http } = this.#ports;
    const ports = ["--counter-port", counter, "--semaphore-port", semaphore, "--http-port", http];
    const options = ["serve", "--config", join(this.directory, "signalbox.toml"), "--log-format", "json", ...ports];
    const child = spawn(SIGNALBOX, options, { stdio: ["ignore", "ignore", "pipe"] });
    this.#process = child;
    for await (const line of createInterface(child.stderr)) {
      const { message, fields } = JSON.parse(line) as { message: string; fields: Record<string, string> };
      if (message === "signalbox is ready") {
        const port = (kind: string): string => fields[kind]?.split(":").at(-1) ?? "0";
        this.#ports = { counter: port("counter"), semaphore: port("semaphore"), http: port("http") };
        child.stderr.resume();
        return;
      }
    }
    throw new Error("the server does not start");
  }

  /** Signals the process. It answers nothing more when it is stopped: its threads continue until one of them has got the signal. */
  async signal(signal: NodeJS.Signals): Promise<void> {
    const child = this.#process;
    child?.kill(signal);
    if (signal === "SIGSTOP") {
      await eventually("it is stopped", () => readFileSync(`/proc/${child?.pid}/stat`, "utf8").includes(") T "));
    }
  }

  /** Ends the process. */
  async stop(signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
    const child = this.#process;
    this.#process = undefined;
    if (child !== undefined && child.exitCode === null && child.signalCode === null) {
      child.kill(signal);
      await once(child, "exit");
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
    rmSync(this.directory, { recursive: true });
  }

  /** Runs the command line against the server, and blocks the event loop until it has ended. */
  command(...options: string[]): string {
    const env = { ...process.env, SIGNALBOX_SERVER: `127.0.0.1:${this.#ports.counter}` };
    return execFileSync(SIGNALBOX, options, { env, encoding: "utf8" });
  }

  /** How much of a counter is in use, and how many requests wait for it. */
  async usage(name: string): Promise<{ in_use: number; waiting: number }> {
    const get = async (path: string): Promise<any> => (await fetch(`${this.url}/api/v1/${path}name=${name}&kind=counter`)).json();
    const { items = [] } = await get("name?");
    const { total = 0 } = await get("waiters?");
    return { in_use: items[0]?.in_use ?? 0, waiting: total };
  }

  /** Waits until a name is neither in use nor waited for. */
  free(name: string): Promise<void> {
    return eventually(`${name} is free`, async () => {
      const { in_use, waiting } = await this.usage(name);
      return in_use === 0 && waiting === 0;
    });
  }
}

/** Passes requests on to a server, unless it is told to keep their answers. */
export class Proxy implements AsyncDisposable {
  /** The paths of the requests whose answers are kept. */
  readonly kept: string[] = [];
  /** Whether to keep the answers to requests with such a path. */
  keeps = (_path: string): boolean => false;
  readonly #listener: http.Server;

  private constructor(target: string) {
    this.#listener = http.createServer(async (request, response) => {
      const body = await request.toArray();
      const { host: _, ...headers } = request.headers;
      const passed = http.request(target + request.url, { method: "POST", headers, agent: false }, async (answer) => {
        const text = Buffer.concat(await answer.toArray());
        if (this.keeps(request.url ?? "")) {
          this.kept.push(request.url ?? "");
        } else {
          response.writeHead(answer.statusCode ?? 0, answer.headers).end(text);
        }
      });
      passed.on("error", () => response.destroy());
      response.on("close", () => passed.destroy());
      passed.end(Buffer.concat(body));
    });
  }

  static async start(target: string): Promise<Proxy> {
    const proxy = new Proxy(target);
    proxy.#listener.listen(0, "127.0.0.1");
    await once(proxy.#listener, "listening");
    return proxy;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#listener.address() as AddressInfo).port}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#listener.closeAllConnections();
    this.#listener.close();
    await once(this.#listener, "close");
  }
}
