// A permit, as the program holds it.

import type { Happening } from "./events.js";
import { Lost, Misuse } from "./failures.js";
import type { LostReason, Validity } from "./validity.js";

/** The part of a client that a permit uses. */
export interface Holder {
  /** The permit is one of a single flight. */
  readonly isShared: boolean;
  /** Tells the program what happens to the permit. */
  tell(event: Happening): void;
  /** Releases the permit; resolves when the server has answered, or after some seconds. `done`: the result of a single flight is there. */
  release(id: number, done: boolean): Promise<void>;
  /** The permit was found to have expired. */
  expire(id: number): void;
}

/**
 * Resources that are held. They are held until `release`, or until the permit is lost; the client renews the lease on a thread
 * of its own. A permit that is forgotten is held as long as the process lives.
 */
export class Permit {
  /** What was acquired, for messages: `limit "gpu"`. */
  readonly what: string;
  /**
   * The fencing token: it grows with each grant of a name. Send it with each write, and let the store refuse lower ones than it
   * has seen.
   */
  readonly fence: bigint;
  /** The numbers of the slots of each claim, in the order of the claims; empty if no name has slots. */
  readonly slots: readonly (readonly number[])[];
  /** The number of this acquire, as in the events. */
  readonly id: number;
  readonly #validity: Validity;
  readonly #holder: Holder;
  #lost: Lost | undefined;
  #released: Promise<void> | undefined;
  #loss: AbortController | undefined;

  /** @internal */
  constructor(id: number, what: string, fence: bigint, slots: readonly (readonly number[])[], validity: Validity, holder: Holder) {
    this.id = id;
    this.what = what;
    this.fence = fence;
    this.slots = slots;
    this.#validity = validity;
    this.#holder = holder;
  }

  /**
   * How long the permit is held at least, in milliseconds, if nothing renews it from now on; 0: it is lost or released. It reads the
   * clock, also after the event loop was blocked or the process was stopped.
   */
  get timeLeftMs(): number {
    const isOver = this.#released !== undefined || (this.#lost !== undefined && this.#lost.reason !== "revoked");
    return isOver ? 0 : this.#validity.leftMs;
  }

  /**
   * Call this before each step of the work. It reads the clock, and what the renewing thread knows.
   *
   * @throws Lost, if the permit is lost, is being revoked, or is released. A permit that is being revoked is held for `timeLeftMs`, so
   * that the program can finish.
   */
  check(): void {
    if (this.#released !== undefined) {
      throw this.#lost ?? lost(this.what, "released");
    }
    if (this.#lost === undefined) {
      const reason = this.#validity.reason;
      if (reason !== undefined) {
        this.lose(reason);
      } else if (this.#validity.leftMs === 0) {
        this.#holder.expire(this.id);
        this.lose("expired");
      }
    }
    if (this.#lost !== undefined) {
      throw this.#lost;
    }
  }

  /**
   * Is aborted when the permit is lost or is being revoked, with the `Lost` that `check` throws as its reason; not by `release`. Give
   * it to what can be aborted.
   */
  get signal(): AbortSignal {
    this.#loss ??= new AbortController();
    if (this.#lost !== undefined) {
      this.#loss.abort(this.#lost);
    }
    return this.#loss.signal;
  }

  /**
   * Gives the resources back. It can be repeated, and never fails: it resolves when the server has answered, and after 5 s in any
   * case. The client then repeats it until the lease has ended by itself.
   */
  release(): Promise<void> {
    return this.#releaseAs(false);
  }

  /**
   * Like `release`, for a permit of `acquireShared`: the result is there, and all that wait for it are informed.
   *
   * @throws Misuse, if it is another permit, which stays held
   */
  async releaseDone(): Promise<void> {
    if (!this.#holder.isShared) {
      throw new Misuse(`${this.what}: the permit is not one of acquireShared; use release`);
    }
    await this.#releaseAs(true);
  }

  /** `release`, at the end of the block of `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }

  #releaseAs(done: boolean): Promise<void> {
    this.#released ??= this.#holder.release(this.id, done);
    return this.#released;
  }

  /** @internal The work has returned: throws if others may have held the resources meanwhile. */
  checkAtEnd(): void {
    if (this.#released === undefined && this.timeLeftMs === 0) {
      this.check();
    }
  }

  /** @internal */
  tell(event: Happening): void {
    this.#holder.tell(event);
  }

  /** @internal */
  lose(reason: LostReason): void {
    if (this.#lost === undefined && this.#released === undefined) {
      this.#lost = lost(this.what, reason);
      this.#loss?.abort(this.#lost);
    }
  }
}

const EXPLANATIONS: Record<LostReason, string> = {
  expired: "the lease has expired, or the server was restarted without a data directory; others may hold the resources; stop the work",
  revoked: "an administrator revokes the permit; stop the work and release it",
  unreachable: "no server has answered until the end of the lease, and others may hold the resources; stop the work",
  not_permitted: "the server has refused this client until the end of the lease, and others may hold the resources; stop the work",
  stopped: "the thread that renews the lease has failed; stop the work",
  released: "the permit was released; acquire another one",
};

function lost(what: string, reason: LostReason): Lost {
  return new Lost(reason, `${what}: ${EXPLANATIONS[reason]}`);
}
