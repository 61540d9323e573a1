// Renewals: one request renews up to 64 leases, and stays at the server until one of them changes.

import { setTimeout as sleep } from "node:timers/promises";

import { now } from "../clock.js";
import type { LostReason } from "../validity.js";
import type { Lease } from "./lease.js";
import { pause, within } from "./pause.js";
import { ANSWER_MS, NoAnswer, pollOf, type Transport } from "./transport.js";

/** Leases that one request renews. */
const KEYS_MAX = 64;

/** The least time between two requests of a group. A lease that is shorter-lived in the program is never renewed. */
const PACE_MS = 50;

/** Why leases were not renewed, and so why they end if that continues. */
interface Problem {
  readonly reason: LostReason;
  readonly retryAfterMs: number;
}

const NO_ANSWER: Problem = { reason: "unreachable", retryAfterMs: 0 };

export class Renewal {
  readonly #transport: Transport;
  readonly #groups = new Set<Group>();

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Renews a lease from now on. */
  add(lease: Lease): void {
    let group = [...this.#groups].find((group) => group.leases.size < KEYS_MAX);
    if (group === undefined) {
      group = new Group(this.#transport);
      this.#groups.add(group);
    }
    group.add(lease);
  }

  remove(lease: Lease): void {
    for (const group of this.#groups) {
      if (group.leases.delete(lease.key) && group.leases.size === 0) {
        this.#groups.delete(group);
      }
    }
  }
}

class Group {
  readonly #transport: Transport;
  /** The leases by their keys. */
  readonly leases = new Map<string, Lease>();
  /** The request that has the newest members. The server answers the previous one when it arrives. */
  #round = 0;
  #begins = false;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  add(lease: Lease): void {
    this.leases.set(lease.key, lease);
    if (!this.#begins) {
      this.#begins = true;
      setTimeout(() => {
        this.#begins = false;
        void this.#run(++this.#round);
      }, PACE_MS);
    }
  }

  async #run(round: number): Promise<void> {
    let failures = 0;
    while (round === this.#round && this.leases.size > 0) {
      const keys = [...this.leases.keys()];
      const ttlMs = Math.min(...[...this.leases.values()].map((lease) => lease.ttlMs));
      // A server without room for requests that wait answers others.
      const pollMs = failures > 0 ? 0 : pollOf(ttlMs);
      const sent = now();
      // A late answer counts, too, but the lease may be too short to wait for it.
      const lateMs = Math.min(ANSWER_MS / 2, ttlMs / 4);
      const problem = await within(pollMs + lateMs, this.#renew(keys, { pollMs, lateMs }, sent), NO_ANSWER);
      if (problem === undefined) {
        failures = 0;
        await sleep(Math.max(0, PACE_MS - (now() - sent)));
      } else {
        for (const key of keys) {
          this.leases.get(key)?.notRenewed(problem.reason);
        }
        await pause(failures++, ttlMs / 8, problem.retryAfterMs);
      }
    }
  }

  async #renew(keys: string[], times: { pollMs: number; lateMs: number }, sent: number): Promise<Problem | undefined> {
    try {
      const answer = await this.#transport.post("renew", { keys }, times);
      if (answer.status !== 200) {
        return { reason: "not_permitted", retryAfterMs: 0 };
      }
      for (const view of answer.body.leases ?? []) {
        this.leases.get(view.key ?? "")?.renewed(view, sent);
      }
      return undefined;
    } catch (error) {
      return error instanceof NoAnswer ? { ...NO_ANSWER, retryAfterMs: error.retryAfterMs } : NO_ANSWER;
    }
  }
}
