// Requests to the servers: JSON over HTTP, on connections that are kept. A request may be sent any number of times, so one that
// was not answered is repeated, by the caller, and a client of several servers asks them in parallel until one answers.

import { Agent, type IncomingMessage, request as httpRequest, type RequestOptions } from "node:http";
import { Agent as SecureAgent, request as httpsRequest } from "node:https";
import { setTimeout as sleep } from "node:timers/promises";
import type { TLSSocket } from "node:tls";
import { urlToHttpOptions } from "node:url";

import { now } from "../clock.js";
import type { Settings } from "../messages.js";
import { Token } from "./token.js";

/** A lease in an answer (docs/http.md, "Acquire" and "Renew"). */
export interface View {
  key?: string;
  state: "held" | "queued" | "revoking" | "done" | "lost" | "not_permitted";
  valid_ms: number;
  ttl_ms?: number;
  grace_ms?: number;
  grant?: string;
  slots?: number[][];
  position?: number;
  place?: string;
  reason?: string;
}

/** An answer with a status below 500. */
export interface Answer {
  readonly status: number;
  readonly body: Partial<View> & { leases?: View[]; error?: { code: string; message: string } };
}

/** No server has answered, or none that serves. */
export class NoAnswer extends Error {
  /** How long the server wants the client to pause before it repeats the request, in milliseconds. */
  readonly retryAfterMs: number;
  /** The failure of an acquire, if what answers is certainly not a server that the client can use, so repeating does not help. */
  readonly hopeless: "Misuse" | "Unreachable" | undefined;
  /** The server's message, if it has no room for the request. */
  readonly limit: string | undefined;

  constructor(message: string, more: Partial<Pick<NoAnswer, "retryAfterMs" | "hopeless" | "limit">> = {}) {
    super(message);
    this.retryAfterMs = more.retryAfterMs ?? 0;
    this.hopeless = more.hopeless;
    this.limit = more.limit;
  }
}

/** How long an answer may take that the server does not delay. */
export const ANSWER_MS = 2_000;

/** The longest that a server keeps a request. */
const POLL_MS_MAX = 25_000;

/** How long the server should keep a request for leases of this time to live. */
export function pollOf(ttlMs: number): number {
  return Math.floor(Math.min(ttlMs / 4, POLL_MS_MAX));
}

/** The largest answer, of 64 leases with places and slots, is far smaller. */
const ANSWER_BYTES_MAX = 16 * 1024 * 1024;

/** Idle connections to a server that are kept for the next requests. */
const FREE_CONNECTIONS_MAX = 64;

/** How long a token that was refused is not shown again: the server slows clients down that show many wrong ones. */
const REFUSED_FOR_MS = 10_000;

export class Transport {
  readonly #servers: readonly Server[];
  readonly #token: Token;
  /** The server that answered last. */
  #current: Server | undefined;
  #refused: { token: string | undefined; answer: Answer; until: number } | undefined;

  constructor(settings: Settings) {
    this.#servers = settings.urls.map((url) => new Server(new URL(url), settings.ca));
    this.#token = new Token(settings.token, settings.tokenFile);
  }

  /** Whether requests have a token. */
  get hasToken(): boolean {
    return this.#token.isGiven;
  }

  /**
   * Sends a request about leases. The server may keep it for `pollMs`. The server that answered last is asked first, and the others
   * in parallel, to answer at once, if it fails or has not answered `lateMs` later. `ANSWER_MS` later, this gives up.
   *
   * @throws NoAnswer, or the reason of `signal`
   */
  async post(
    path: "acquire" | "renew" | "release",
    body: object,
    { pollMs = 0, lateMs = ANSWER_MS / 2, signal }: { pollMs?: number; lateMs?: number; signal?: AbortSignal } = {},
  ): Promise<Answer> {
    const ask = (server: Server, pollMs: number, signal?: AbortSignal): Promise<Answer> =>
      this.#ask(server, path, JSON.stringify(pollMs > 0 ? { ...body, poll_ms: pollMs } : body), pollMs + ANSWER_MS, signal);
    const [only] = this.#servers;
    return this.#servers.length === 1 && only !== undefined
      ? ask(only, pollMs, signal)
      : this.#race(ask, pollMs, pollMs + lateMs, signal);
  }

  /** Asks servers in parallel. The first answer counts; a refusal counts only if no other server has another answer. */
  async #race(
    ask: (server: Server, pollMs: number, signal: AbortSignal) => Promise<Answer>,
    pollMs: number,
    lateMs: number,
    signal: AbortSignal | undefined,
  ): Promise<Answer> {
    const over = new AbortController();
    const stop = (): void => over.abort(signal?.reason);
    signal?.addEventListener("abort", stop);
    const refusals: Answer[] = [];
    const attempt = async (server: Server, pollMs: number): Promise<Answer> => {
      const answer = await ask(server, pollMs, over.signal);
      if (isRefusal(answer)) {
        refusals.push(answer);
        throw new NoAnswer("refused");
      }
      this.#current = server;
      return answer;
    };
    const current = this.#current;
    const first = current === undefined ? [] : [attempt(current, pollMs)];
    const othersBegin = new Promise<void>((resolve) => {
      if (current === undefined) {
        resolve();
      }
      first[0]?.catch(() => resolve());
      sleep(lateMs, undefined, { signal: over.signal }).then(resolve, () => undefined);
    });
    const others = this.#servers.filter((server) => server !== current);
    const attempts = [...first, ...others.map((server) => othersBegin.then(() => attempt(server, 0)))];
    try {
      return await Promise.any(attempts);
    } catch (error) {
      signal?.throwIfAborted();
      if (refusals[0] !== undefined) {
        return refusals[0];
      }
      this.#current = undefined;
      const errors: unknown[] = (error as AggregateError).errors;
      const unexpected = errors.find((error) => !(error instanceof NoAnswer));
      if (unexpected !== undefined) {
        throw unexpected;
      }
      const failures = errors as NoAnswer[];
      const retryAfterMs = Math.min(...failures.map((failure) => failure.retryAfterMs));
      const ends = failures.map((failure) => failure.hopeless);
      const hopeless = ends.includes(undefined) ? undefined : ends.includes("Unreachable") ? "Unreachable" : "Misuse";
      const limit = failures.find((failure) => failure.limit !== undefined)?.limit;
      throw new NoAnswer(failures.map((failure) => failure.message).join("; "), { retryAfterMs, hopeless, limit });
    } finally {
      signal?.removeEventListener("abort", stop);
      over.abort();
    }
  }

  async #ask(server: Server, path: string, text: string, timeoutMs: number, signal?: AbortSignal): Promise<Answer> {
    signal?.throwIfAborted();
    if (path === "release") {
      // It needs no token, so a wrong one does no harm.
      return server.exchange(path, text, undefined, timeoutMs, signal);
    }
    let token = this.#token.current();
    const refused = this.#refused;
    if (refused !== undefined && refused.token === token && now() < refused.until) {
      if (!this.#token.isReplaced(token)) {
        return refused.answer;
      }
      token = this.#token.current();
    }
    const answer = await server.exchange(path, text, token, timeoutMs, signal);
    if (isRefusal(answer) && this.#token.isReplaced(token)) {
      return server.exchange(path, text, this.#token.current(), timeoutMs, signal);
    }
    if (answer.status === 401 || answer.status === 429) {
      this.#refused = { token, answer, until: now() + REFUSED_FOR_MS };
    }
    return answer;
  }
}

/** Whether the server refuses the client, whatever it asks for. */
export function isRefusal(answer: Answer): boolean {
  return [401, 403, 421, 429].includes(answer.status);
}

class Server {
  readonly #url: string;
  readonly #hint: string;
  readonly #options: RequestOptions;
  readonly #path: string;
  readonly #request: typeof httpRequest;

  constructor(url: URL, ca: string | undefined) {
    const isSecure = url.protocol === "https:";
    const settings = { keepAlive: true, keepAliveMsecs: 10_000, maxFreeSockets: FREE_CONNECTIONS_MAX };
    this.#url = url.origin;
    this.#hint = url.port === "" ? ` (port ${isSecure ? 443 : 80}; that of the server is usually 11217)` : "";
    this.#path = `${url.pathname.replace(/\/$/, "")}/api/v1/lease/`;
    this.#options = {
      ...urlToHttpOptions(url),
      method: "POST",
      agent: isSecure ? new SecureAgent(ca === undefined ? settings : { ...settings, ca }) : new Agent(settings),
    };
    this.#request = isSecure ? httpsRequest : httpRequest;
  }

  /** Sends one request. An idle connection that the server has closed meanwhile is replaced. */
  async exchange(path: string, text: string, token: string | undefined, timeoutMs: number, signal?: AbortSignal): Promise<Answer> {
    for (;;) {
      try {
        return await this.#exchange(path, text, token, timeoutMs, signal);
      } catch (error) {
        if (!(error instanceof StaleConnection)) {
          throw error;
        }
      }
    }
  }

  #exchange(path: string, text: string, token: string | undefined, timeoutMs: number, signal?: AbortSignal): Promise<Answer> {
    return new Promise((resolve, reject) => {
      const headers: Record<string, string | number> = {
        "Content-Type": "application/json",
        "Content-Length": Buffer.byteLength(text),
      };
      if (token !== undefined) {
        headers["Authorization"] = `Bearer ${token}`;
      }
      const request = this.#request({ ...this.#options, path: this.#path + path, headers, ...(signal && { signal }) });
      const timer = setTimeout(() => fail(`no answer within ${timeoutMs} ms`), timeoutMs);
      const fail = (why: string): void => {
        clearTimeout(timer);
        request.destroy();
        reject(new NoAnswer(`${this.#url}: ${why}`));
      };
      request.on("error", (error: NodeJS.ErrnoException) => {
        const isStale = request.reusedSocket && (error.code === "ECONNRESET" || error.code === "EPIPE");
        clearTimeout(timer);
        const isUntrusted = Boolean((request.socket as TLSSocket | null)?.authorizationError);
        reject(isStale && !signal?.aborted ? new StaleConnection() : this.#noAnswer(error, isUntrusted));
      });
      request.on("response", (response) => {
        let answer = "";
        response.setEncoding("utf8");
        response.on("data", (part: string) => {
          answer += part;
          if (answer.length > ANSWER_BYTES_MAX) {
            fail("the answer is too long for one of signalbox");
          }
        });
        response.on("error", (error) => fail(error.message));
        response.on("end", () => {
          clearTimeout(timer);
          try {
            resolve(this.#read(response, answer));
          } catch (error) {
            reject(error);
          }
        });
      });
      request.end(text);
    });
  }

  /** Why a request has failed, in one line. */
  #noAnswer({ code = "", message }: NodeJS.ErrnoException, isUntrusted: boolean): NoAnswer {
    const listener = "give the HTTP listener (--http-port) of the server";
    // A first line that is not HTTP. Other errors of the parser may be those of an answer that was cut off.
    if (code === "HPE_INVALID_CONSTANT") {
      return new NoAnswer(`${this.#url} does not speak HTTP: ${listener}, with https: if it has TLS`, { hopeless: "Misuse" });
    }
    // OpenSSL's message for a first record that is not TLS.
    if (/:(wrong version number|unexpected message|packet length too long)/.test(message)) {
      return new NoAnswer(`${this.#url} does not speak TLS: ${listener}, with http: if it has no TLS`, { hopeless: "Misuse" });
    }
    if (isUntrusted) {
      const advice = "check the URL, and the authorities of caFile or SIGNALBOX_CA";
      return new NoAnswer(`${this.#url}: the certificate of the server is not trusted (${message}); ${advice}`, { hopeless: "Unreachable" });
    }
    return new NoAnswer(`${this.#url}${this.#hint}: ${message.trim().replace(/\s+/g, " ") || code}`);
  }

  #read(response: IncomingMessage, text: string): Answer {
    const status = response.statusCode ?? 0;
    let body: unknown;
    try {
      body = JSON.parse(text);
    } catch {
      // Below.
    }
    if (typeof body !== "object" || body === null) {
      throw new NoAnswer(`${this.#url}: the answer with status ${status} is not one of signalbox`);
    }
    const answer = { status, body } as Answer;
    if (status >= 500 || status === 408) {
      const retryAfterMs = 1000 * Number(response.headers["retry-after"] ?? 0);
      const { code, message = `status ${status}` } = answer.body.error ?? {};
      throw new NoAnswer(`${this.#url}: ${message}`, { retryAfterMs, limit: code === "limit_reached" ? message : undefined });
    }
    return answer;
  }
}

/** The server has closed an idle connection before it read this request. */
class StaleConnection extends Error {}
