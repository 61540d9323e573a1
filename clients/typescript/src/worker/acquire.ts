// The acquire: one request, repeated with its key until it is granted, refused, or given up.

import { CLOCK_STEP_MS, now } from "../clock.js";
import type { WireFailure, WireRequest } from "../messages.js";
import { PAUSE_MS_MAX, pause } from "./pause.js";
import { type Answer, isRefusal, NoAnswer, pollOf, type Transport, type View } from "./transport.js";

/** A refusal, or the failure to reach a server. */
export class Refused extends Error {
  readonly failure: WireFailure;
  /** Whether an earlier request with the key may have been granted. */
  readonly mayHold: boolean;

  constructor(failure: WireFailure, mayHold: boolean) {
    super(failure.message);
    this.failure = failure;
    this.mayHold = mayHold;
  }
}

/** A grant, and until when the client may believe in it. */
export interface Granted {
  readonly grant: string;
  readonly slots: number[][];
  readonly ttlMs: number;
  readonly untilMs: number;
}

/**
 * @returns what was granted; `undefined`, if another client has made the result of the single flight
 * @throws Refused, or the reason of `signal`
 */
export async function acquire(
  transport: Transport,
  key: string,
  request: WireRequest,
  unreachableAfterMs: number,
  onWaiting: (position: number) => void,
  signal: AbortSignal,
): Promise<Granted | undefined> {
  // The server counts the wait again after a restart, so the client has an end of its own.
  const begun = now();
  const giveUpAt = begun + request.wait_ms + unreachableAfterMs;
  let answeredAt = begun;
  let failures = 0;
  let place: string | undefined;
  // The first request is answered at once, so the program learns its position, and the client its place. So is the one after a
  // failure, since a server without room for requests that wait answers others.
  let pollMs = 0;
  for (;;) {
    const sent = now();
    let problem: NoAnswer | undefined;
    try {
      const body = { key, ...request, ...(place !== undefined && { place }) };
      const answer = await transport.post("acquire", body, { pollMs, signal });
      const view = answer.body as View;
      if (answer.status === 202) {
        answeredAt = now();
        failures = 0;
        place = view.place ?? place;
        pollMs = pollOf(view.ttl_ms ?? request.ttl_ms);
        onWaiting(view.position ?? 0);
      } else if (answer.status === 200 && view.state === "done") {
        return undefined;
      } else if (answer.status === 200 && view.state === "held") {
        const granted = grantedBy(view, sent);
        // Else it has expired before its answer came, and the same request begins another lease.
        if (now() + CLOCK_STEP_MS < granted.untilMs) {
          return granted;
        }
        answeredAt = now();
        problem = new NoAnswer("the answers come too late");
      } else if (answer.status < 400) {
        throw new NoAnswer("the answers are not those of signalbox");
      } else {
        // 409 says that the key has nothing.
        throw new Refused(refusal(answer, request, transport.hasToken), answer.status !== 409);
      }
    } catch (error) {
      if (!(error instanceof NoAnswer)) {
        throw error;
      }
      problem = error;
      pollMs = 0;
      if (now() - answeredAt < unreachableAfterMs && error.hopeless === undefined) {
        await pause(failures++, PAUSE_MS_MAX, error.retryAfterMs, signal);
      }
    }
    const isSilent = now() - answeredAt >= unreachableAfterMs;
    if (problem?.hopeless !== undefined) {
      throw new Refused({ kind: problem.hopeless, code: undefined, message: problem.message }, true);
    }
    if (problem !== undefined && (isSilent || now() >= giveUpAt)) {
      if (problem.limit !== undefined) {
        throw new Refused({ kind: "Busy", code: "limit_reached", message: problem.limit }, true);
      }
      const seconds = Math.round((now() - (isSilent ? answeredAt : begun)) / 100) / 10;
      const message = `unreachable for ${seconds} s, and nothing is held; check the servers and the network (${problem.message})`;
      throw new Refused({ kind: "Unreachable", code: undefined, message }, true);
    }
    if (now() >= giveUpAt) {
      throw new Refused(timedOut(request, "timed_out"), true);
    }
  }
}

function grantedBy(view: View, sent: number): Granted {
  const { grant = "0", slots = [], ttl_ms: ttlMs = 0, valid_ms } = view;
  return { grant, slots, ttlMs, untilMs: sent + valid_ms };
}

/** The failure for a status of 400 to 499. */
function refusal(answer: Answer, request: WireRequest, hasToken: boolean): WireFailure {
  const { code = `status ${answer.status}`, message = "the answer has no reason" } = answer.body.error ?? {};
  switch (code) {
    case "busy":
      return { kind: "Busy", code, message: "it is in use; try again later, or wait with waitMs" };
    case "paused":
      return { kind: "Busy", code, message: "it is paused and nothing is granted for now; try again later, or wait with waitMs" };
    case "timed_out":
      return timedOut(request, code);
    case "queue_full":
      return { kind: "QueueFull", code, message: "queueMax requests wait already; try again later" };
    case "canceled":
    case "revoked":
    case "removed":
      return { kind: "Lost", code, message };
    default:
      if (isRefusal(answer) && answer.status !== 421 && !hasToken) {
        const message =
          "the server permits it only with a token, and the client was given none; give token, tokenFile or SIGNALBOX_TOKEN_FILE";
        return { kind: "NotPermitted", code, message };
      }
      return { kind: isRefusal(answer) && answer.status !== 421 ? "NotPermitted" : "Misuse", code, message };
  }
}

function timedOut({ wait_ms: waitMs }: WireRequest, code: string): WireFailure {
  const message = `it was in use for all of waitMs, ${waitMs} ms; try again later, or wait longer`;
  return { kind: "TimedOut", code, message };
}
