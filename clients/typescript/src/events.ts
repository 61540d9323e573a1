// The events that a client reports to its program.

import type { LostReason } from "./validity.js";

/** The kinds of events, with their fields. */
export type Happening =
  | { readonly type: "waiting"; readonly position: number }
  | { readonly type: "acquired"; readonly fence: bigint }
  | { readonly type: "renewed" }
  | { readonly type: "revoking"; readonly graceMs: number }
  | { readonly type: "lost"; readonly reason: LostReason }
  | { readonly type: "released" };

/**
 * An event. `id` is the same number for all events of one acquire and of its permit (`permit.id`), and `names` are what was acquired;
 * of a name that is bytes, each character is one.
 *
 * - `waiting`: it waits in the queue; `position` 1 is served next. It is reported again while it waits
 * - `acquired`, and then `renewed` again and again
 * - `revoking`: an administrator takes it away after `graceMs`
 * - `lost` or `released`: the last event of a permit
 */
export type ClientEvent = { readonly id: number; readonly names: readonly string[] } & Happening;
