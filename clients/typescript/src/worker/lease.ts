// A lease that is held: until when it may be believed, and how it ends.

import { now } from "../clock.js";
import { type LostReason, Validity } from "../validity.js";
import type { Granted } from "./acquire.js";
import type { View } from "./transport.js";

/** How often the end is compared with the clock, since timers stand still while the machine is suspended. */
const LOOK_MS = 1_000;

/** Is called with what happens to a lease. */
export interface Listener {
  renewed(lease: Lease): void;
  /** It ends after `graceMs`. It is no longer renewed. */
  revoking(lease: Lease, graceMs: number): void;
  /** The client may no longer be permitted, so the lease is not renewed for now. */
  refused(lease: Lease): void;
  /** It has ended, and not by `release`. */
  lost(lease: Lease, reason: LostReason): void;
}

export class Lease {
  readonly key: string;
  readonly ttlMs: number;
  readonly validity = new Validity();
  readonly #grant: string;
  readonly #listener: Listener;
  #untilMs: number;
  #isOver = false;
  #timer: NodeJS.Timeout | undefined;
  /** Why it ends if nothing renews it. */
  #reason: LostReason = "expired";

  constructor(key: string, granted: Granted, listener: Listener) {
    this.key = key;
    this.ttlMs = granted.ttlMs;
    this.#grant = granted.grant;
    this.#listener = listener;
    this.#untilMs = granted.untilMs;
    this.validity.untilMs = granted.untilMs;
  }

  /** Ends it when its end has come, from now on. */
  watch(): void {
    clearTimeout(this.#timer);
    const leftMs = this.validity.leftMs;
    if (leftMs === 0) {
      this.#end(this.#reason);
    } else {
      this.#timer = setTimeout(() => this.watch(), Math.min(leftMs, LOOK_MS));
    }
  }

  /** A renewal that was sent at a time of the clock is answered. */
  renewed(view: View, sent: number): void {
    const untilMs = sent + view.valid_ms;
    if (this.#isOver || this.validity.reason !== undefined) {
      return;
    }
    if (now() >= this.#untilMs) {
      // The program may have seen the end.
      this.#end(this.#reason);
    } else if (view.state === "held" && view.grant === this.#grant) {
      this.#reason = "expired";
      this.#extend(untilMs);
      this.#listener.renewed(this);
    } else if (view.state === "revoking" && view.grant === this.#grant) {
      this.validity.reason = this.#reason = "revoked";
      this.#untilMs = untilMs;
      this.validity.untilMs = untilMs;
      this.#listener.revoking(this, view.grace_ms ?? 0);
      this.watch();
    } else if (view.state === "not_permitted") {
      this.#reason = "not_permitted";
      this.#extend(untilMs);
      this.#listener.refused(this);
    } else {
      // Lost; or held by another grant, as an acquire that came late has begun another lease.
      this.#end(view.reason === undefined ? "expired" : "revoked");
    }
  }

  /** A renewal has failed. */
  notRenewed(reason: LostReason): void {
    if (this.validity.reason === undefined) {
      this.#reason = reason;
    }
  }

  /** The program releases it, or has found that it has expired. */
  stop(): void {
    this.#isOver = true;
    clearTimeout(this.#timer);
  }

  /** The program has found that it has expired. */
  expire(): void {
    this.#end(this.#reason);
  }

  /** When the server gives it to others at the latest, if nothing renews it. */
  get endsAtMs(): number {
    return this.#untilMs + this.ttlMs / 10;
  }

  #extend(untilMs: number): void {
    if (untilMs > this.#untilMs) {
      this.#untilMs = untilMs;
      this.validity.untilMs = untilMs;
    }
  }

  #end(reason: LostReason): void {
    if (!this.#isOver) {
      this.stop();
      this.validity.reason = reason;
      this.validity.untilMs = 0;
      this.#listener.lost(this, reason);
    }
  }
}
