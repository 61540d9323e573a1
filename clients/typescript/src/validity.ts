// The state of a lease that both threads read: until when it is valid, and whether it is being lost. It is in shared memory, so
// a program whose event loop was blocked reads what has happened meanwhile. Only the worker writes.

import { CLOCK_STEP_MS, now } from "./clock.js";

/**
 * Why a permit is lost.
 *
 * - `expired`: the lease ended, since the process or its machine was stopped for longer, the server was restarted without a data
 *   directory, or an administrator ended its session without a grace period
 * - `revoked`: an administrator revokes it
 * - `unreachable`: no server answered until the end of the lease
 * - `not_permitted`: the server refused this client until the end of the lease
 * - `stopped`: the thread that renews the lease has failed
 * - `released`: the program released it; only `check` says so, and there is no event for it
 */
export type LostReason = (typeof REASONS)[number];

const REASONS = ["expired", "revoked", "unreachable", "not_permitted", "stopped", "released"] as const;

export class Validity {
  /** The end, in whole milliseconds of the clock; and 0, or 1 and the index of the reason. */
  readonly #words: BigInt64Array<SharedArrayBuffer>;

  constructor(memory = new SharedArrayBuffer(16)) {
    this.#words = new BigInt64Array(memory);
  }

  get memory(): SharedArrayBuffer {
    return this.#words.buffer;
  }

  /** How long the lease is valid at least, in milliseconds; 0: it is not. */
  get leftMs(): number {
    return Math.max(0, Number(Atomics.load(this.#words, 0)) - now() - CLOCK_STEP_MS);
  }

  set untilMs(until: number) {
    Atomics.store(this.#words, 0, BigInt(Math.floor(until)));
  }

  /** Why it is lost, or will be at its end. */
  get reason(): LostReason | undefined {
    return REASONS[Number(Atomics.load(this.#words, 1)) - 1];
  }

  set reason(reason: LostReason) {
    Atomics.store(this.#words, 1, BigInt(REASONS.indexOf(reason) + 1));
  }
}
