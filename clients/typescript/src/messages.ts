// The messages between the program's thread and the worker.

import type { LostReason } from "./validity.js";

/** How the worker reaches the servers. */
export interface Settings {
  readonly urls: readonly string[];
  readonly token: string | undefined;
  readonly tokenFile: string | undefined;
  /** Certificates of authorities, as PEM; the system's if there are none. */
  readonly ca: string | undefined;
  readonly unreachableAfterMs: number;
  /** Whether to report each renewal. */
  readonly reportsRenewals: boolean;
}

/** A claim as the server reads it. */
export interface WireClaim {
  name?: string;
  name_hex?: string;
  resources?: number;
  maximum?: number;
  slot?: number;
}

/** The fields of an acquire as the server reads them, without the key. */
export interface WireRequest {
  claims: WireClaim[];
  ttl_ms: number;
  wait_ms: number;
  queue_max?: number;
  label?: string;
  /** The request is one of a single flight. */
  share?: true;
}

/** To the worker. `id` is one acquire and what it holds. */
export type Command =
  | { do: "acquire"; id: number; request: WireRequest }
  /** Release it, even if it still waits. The answer is `released`. `done` is for a single flight whose result is there. */
  | { do: "release"; id: number; done: boolean }
  /** The program has found that it has expired. */
  | { do: "expire"; id: number };

/** A failure, to be thrown on the other thread. */
export interface WireFailure {
  kind: "Busy" | "TimedOut" | "QueueFull" | "Unreachable" | "NotPermitted" | "Misuse" | "Lost";
  message: string;
  code: string | undefined;
}

/** From the worker. */
export type Report =
  | { is: "waiting"; id: number; position: number }
  | { is: "held"; id: number; fence: string; slots: number[][]; validity: SharedArrayBuffer }
  /** Another client has made the result of the single flight. */
  | { is: "done"; id: number }
  | { is: "failed"; id: number; failure: WireFailure }
  | { is: "renewed"; id: number }
  | { is: "revoking"; id: number; graceMs: number }
  | { is: "lost"; id: number; reason: LostReason }
  | { is: "released"; id: number };
