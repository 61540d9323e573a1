// The client of signalbox for Node: see README.md.

export { Client, type ClientOptions } from "./client.js";
export type { AcquireOptions, Claim, Name, Names, ShareOptions } from "./claims.js";
export type { ClientEvent } from "./events.js";
export { Busy, Failure, Lost, Misuse, NotPermitted, QueueFull, TimedOut, Unreachable } from "./failures.js";
export type { Permit } from "./permit.js";
export type { LostReason } from "./validity.js";
