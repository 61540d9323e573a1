// What a program asks for, and how it is sent.

import { Misuse } from "./failures.js";
import type { WireClaim, WireRequest } from "./messages.js";

/** A name. A limit has any bytes as its name; a text is sent as UTF-8. */
export type Name = string | Uint8Array;

/** One name of an acquire. */
export interface Claim {
  readonly name: Name;
  /** How much of it; 1 unless given. */
  readonly resources?: number | undefined;
  /** How much of the name may be in use at once. It is not needed if an administrator has declared the name. */
  readonly maximum?: number | undefined;
  /** One certain slot of a declared semaphore that has slots. */
  readonly slot?: number | undefined;
}

/** Options of an acquire. `resources`, `maximum` and `slot` are for a single name; a list has them in its claims. */
export interface AcquireOptions extends Omit<Claim, "name"> {
  /** How long to wait in the queue, in milliseconds; 0 unless given. `Infinity` is as long as the server permits. */
  readonly waitMs?: number | undefined;
  /** How long the lease lasts without a renewal, in milliseconds; the client's unless given. */
  readonly ttlMs?: number | undefined;
  /** Does not wait if so many requests wait already. */
  readonly queueMax?: number | undefined;
  /** A text that operators see in listings; the client's unless given. */
  readonly label?: string | undefined;
  /** Gives the acquire up: it then throws the reason of the signal, and leaves nothing behind. It does not release a permit. */
  readonly signal?: AbortSignal | undefined;
}

/** Options of an acquire for a single flight. */
export type ShareOptions = Omit<AcquireOptions, "resources" | "maximum" | "slot">;

/** A name, or several that are granted all or none. */
export type Names = Name | readonly (Name | Claim)[];

const U32_MAX = 0xffff_ffff;

/** The fields of the request. */
export function wireRequest(names: Names, options: AcquireOptions, ttlMs: number, label: string | undefined): WireRequest {
  const { resources, maximum, slot, waitMs = 0 } = options;
  const queueMax = whole("queueMax", options.queueMax);
  const text = options.label ?? label;
  return {
    claims: claimsOf(names, { resources, maximum, slot }).map(wireClaim),
    ttl_ms: whole("ttlMs", options.ttlMs ?? ttlMs) ?? ttlMs,
    wait_ms: waitMs === Infinity ? U32_MAX : (whole("waitMs", waitMs) ?? 0),
    ...(queueMax !== undefined && { queue_max: queueMax }),
    ...(text !== undefined && { label: text }),
  };
}

function claimsOf(names: Names, options: Omit<Claim, "name">): Claim[] {
  if (typeof names === "string" || names instanceof Uint8Array) {
    return [{ name: names, ...options }];
  }
  if (Object.values(options).some((option) => option !== undefined)) {
    throw new Misuse("resources, maximum and slot are for a single name; in a list, each claim has its own: [{ name, maximum }]");
  }
  return names.map((claim) => (typeof claim === "string" || claim instanceof Uint8Array ? { name: claim } : claim));
}

function wireClaim(claim: Claim): WireClaim {
  const { name } = claim;
  const wire: WireClaim = typeof name === "string" ? { name } : { name_hex: Buffer.from(name).toString("hex") };
  for (const field of ["resources", "maximum", "slot"] as const) {
    const value = whole(field, claim[field]);
    if (value !== undefined) {
      wire[field] = value;
    }
  }
  return wire;
}

/** A whole number of 32 bits, since JSON would send others as something else. */
export function whole(option: string, value: number | undefined): number | undefined {
  if (value !== undefined && !(Number.isInteger(value) && value >= 0 && value <= U32_MAX)) {
    throw new Misuse(`${option} is ${value}; it must be a whole number from 0 to ${U32_MAX}`);
  }
  return value;
}

/** The names as texts; of one that is bytes, each character is a byte. */
export function texts(names: Names): string[] {
  return claimsOf(names, {}).map(({ name }) => (typeof name === "string" ? name : Buffer.from(name).toString("latin1")));
}

/** The names, for messages. */
export function described(names: Names): string {
  const list = texts(names).map((name) => `"${name}"`);
  return `${list.length === 1 ? "limit" : "limits"} ${list.join(", ")}`;
}
