// The options of requests, and their form on the wire.

import { Misuse } from "./failures.js";
import type { WireClaim, WireRequest } from "./messages.js";

/** A name. A limit has any bytes as its name; a text is sent as UTF-8. */
export type Name = string | Uint8Array;

/** One name of an acquire. */
export interface Claim {
  readonly name: Name;
  /** How much of it; 1 unless given. */
  readonly resources?: number | undefined;
  /**
   * How much of the name may be in use at once, the same in all programs. It is not needed if an administrator has declared the
   * name.
   */
  readonly maximum?: number | undefined;
  /** A certain slot of a declared semaphore that has slots. */
  readonly slot?: number | undefined;
}

/** Options of an acquire. `resources`, `maximum` and `slot` are for a single name; a list has them in its claims. */
export interface AcquireOptions extends Omit<Claim, "name"> {
  /** How long to wait in the queue, in milliseconds; 0 unless given. `Infinity` is as long as the server permits. */
  readonly waitMs?: number | undefined;
  /** How long the lease lasts without a renewal, in milliseconds: 1,000 or more; the client's unless given. */
  readonly ttlMs?: number | undefined;
  /** Does not wait if this many requests wait already. */
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

/** The server's default `session.min_ttl`: a server would raise a shorter time to it. */
const TTL_MS_MIN = 1_000;

/** The longest name and label, in bytes. */
const NAME_BYTES_MAX = 65_535;
const LABEL_BYTES_MAX = 255;

/** The most names of one acquire. */
const CLAIMS_MAX = 64;

const OF_CLAIM = ["resources", "maximum", "slot"] as const;
const OF_QUEUE = ["waitMs", "queueMax"] as const;
const OF_REQUEST = ["ttlMs", "label", "signal"] as const;

/** The options that apply to each function. */
export const OPTIONS = {
  acquire: [...OF_CLAIM, ...OF_QUEUE, ...OF_REQUEST],
  tryAcquire: [...OF_CLAIM, ...OF_REQUEST],
  share: [...OF_QUEUE, ...OF_REQUEST],
} as const;

/** The fields of the request. */
export function wireRequest(
  caller: keyof typeof OPTIONS,
  names: Names,
  options: AcquireOptions,
  ttlMs: number,
  label: string | undefined,
): WireRequest {
  known(caller, options, OPTIONS[caller]);
  if (options.signal !== undefined && typeof options.signal?.addEventListener !== "function") {
    throw new Misuse("signal is not an AbortSignal");
  }
  const { resources, maximum, slot, waitMs = 0 } = options;
  const queueMax = whole("queueMax", options.queueMax);
  const text = checkedLabel(options.label) ?? label;
  return {
    claims: claimsOf(names, { resources, maximum, slot }).map(wireClaim),
    ttl_ms: checkedTtl(options.ttlMs) ?? ttlMs,
    wait_ms: waitMs === Infinity ? U32_MAX : (whole("waitMs", waitMs) ?? 0),
    ...(queueMax !== undefined && { queue_max: queueMax }),
    ...(text !== undefined && { label: text }),
    ...(caller === "share" && { share: true }),
  };
}

/** Checks that options are an object without further properties. A program without types may give anything. */
export function known(what: string, options: unknown, names: readonly string[]): void {
  if (typeof options !== "object" || options === null || Array.isArray(options)) {
    throw new Misuse(`the options of ${what} are ${shown(options)}; they must be an object, such as { ${names[0]}: … }`);
  }
  for (const [option, value] of Object.entries(options)) {
    if (value !== undefined && !names.includes(option)) {
      throw new Misuse(`${what} has no option ${option}; its options are ${names.join(", ")}`);
    }
  }
}

function shown(value: unknown): string {
  if (typeof value === "string") {
    return `the text "${value}"`;
  }
  return Array.isArray(value) ? `a list of ${value.length}` : typeof value === "function" ? "a function" : String(value);
}

/** A time to live. */
export function checkedTtl(ttlMs: number | undefined): number | undefined {
  return whole("ttlMs", ttlMs, TTL_MS_MIN);
}

export function checkedLabel(label: string | undefined): string | undefined {
  if (label !== undefined && (typeof label !== "string" || Buffer.byteLength(label) > LABEL_BYTES_MAX)) {
    throw new Misuse(`label must be a text of at most ${LABEL_BYTES_MAX} bytes`);
  }
  return label;
}

function claimsOf(names: Names, options: Omit<Claim, "name">): Claim[] {
  if (isName(names)) {
    return [{ name: names, ...options }];
  }
  if (!Array.isArray(names) || names.length === 0 || names.length > CLAIMS_MAX) {
    throw new Misuse(`what to acquire is ${shown(names)}; it must be a name, or a list of 1 to ${CLAIMS_MAX} names`);
  }
  if (Object.values(options).some((option) => option !== undefined)) {
    throw new Misuse("resources, maximum and slot are for a single name; in a list, each claim has its own: [{ name, maximum }]");
  }
  return names.map((claim: Name | Claim) => (isName(claim) ? { name: claim } : claim));
}

function isName(name: unknown): name is Name {
  return typeof name === "string" || name instanceof Uint8Array;
}

function wireClaim(claim: Claim): WireClaim {
  known("a claim", claim, ["name", ...OF_CLAIM]);
  const { name } = claim;
  if (!isName(name)) {
    throw new Misuse(`a name is ${shown(name)}; it must be a text or a Uint8Array`);
  }
  const bytes = Buffer.byteLength(name);
  if (bytes < 1 || bytes > NAME_BYTES_MAX) {
    throw new Misuse(`a name has ${bytes} bytes; it must have 1 to ${NAME_BYTES_MAX}`);
  }
  const wire: WireClaim = typeof name === "string" ? { name } : { name_hex: Buffer.from(name).toString("hex") };
  for (const field of OF_CLAIM) {
    const value = whole(field, claim[field], field === "slot" ? 0 : 1);
    if (value !== undefined) {
      wire[field] = value;
    }
  }
  return wire;
}

/** A whole number of 32 bits, since JSON would send others as something else. */
export function whole(option: string, value: number | undefined, least = 0): number | undefined {
  if (value !== undefined && !(Number.isInteger(value) && value <= U32_MAX)) {
    throw new Misuse(`${option} is ${shown(value)}; it must be a whole number of at most ${U32_MAX}`);
  }
  if (value !== undefined && value < least) {
    throw new Misuse(`${option} is ${value}; use ${least} or more`);
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
