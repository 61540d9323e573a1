// The failures of this package, one class each.

import type { LostReason } from "./validity.js";

/** The base of all failures of this package. `code` is the server's code for the failure, or `undefined` if it has none. */
export abstract class Failure extends Error {
  readonly code: string | undefined;

  constructor(message: string, code?: string) {
    super(message);
    this.name = new.target.name;
    this.code = code;
  }
}

/** What was requested is in use, or paused, and the request does not wait; or the server has no room for it (`limit_reached`). */
export class Busy extends Failure {}

/** The request waited for `waitMs`. */
export class TimedOut extends Failure {}

/** More requests than `queueMax` wait. */
export class QueueFull extends Failure {}

/** No server answered in time, or the certificates of all are not trusted. */
export class Unreachable extends Failure {}

/** The server refuses the token, or the client may not acquire the name. */
export class NotPermitted extends Failure {}

/** The request or the configuration is wrong; repeating it does not help. */
export class Misuse extends Failure {}

/** The permit is lost, or the request was ended by an administrator: stop the work. */
export class Lost extends Failure {
  readonly reason: LostReason;

  constructor(reason: LostReason, message: string, code?: string) {
    super(message, code);
    this.reason = reason;
  }
}
