// Changes. Each is confirmed in a dialog that names what will happen, and needs a token with the right to administer.

import { change, hasToken, read } from "/api.js";
import { element } from "/table.js";
import { amount, nameOf, nameText, plain } from "/text.js";

const dialog = document.getElementById("confirm-dialog");
const ok = document.getElementById("confirm-ok");
const form = dialog.querySelector("form");
const note = document.getElementById("confirm-note");

// The field for the grace period of holders, with its default.
const GRACE = { key: "grace", label: "Grace period in seconds, in which holders keep what they hold", type: "number", min: 0, max: 4_294_967, value: 10 };

const CAPACITY = { key: "capacity", label: "Capacity", type: "number", min: 0, max: 4_294_967_295 };

// Functions that the page sets: they ask for a token, announce the outcome of a change, and read the data again.
export const page = { askForToken: async () => false, announce: () => {}, refresh: async () => {} };

// A field of the dialog: an input, or a choice if it has options.
function fieldOf({ key, label, options, ...attributes }) {
  const input = options
    ? element("select", { name: key }, ...options.map(([value, text]) => element("option", { value }, text)))
    : element("input", { name: key, required: true, autocomplete: "off", spellcheck: "false", ...attributes });
  return element("label", {}, label, input);
}

// Asks whether to continue, with fields to fill in. `noteOf` makes a text of their values. Returns the values; `null`:
// the user has canceled.
function confirm({ title, text, action, fields = [], noteOf = () => "" }) {
  const values = () => Object.fromEntries(new FormData(form));
  document.getElementById("confirm-title").textContent = title;
  document.getElementById("confirm-text").textContent = text;
  document.getElementById("confirm-fields").replaceChildren(...fields.map(fieldOf));
  ok.textContent = action;
  form.oninput = () => {
    note.textContent = noteOf(values());
  };
  form.oninput();
  // Escape leaves the last value in place.
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "ok" ? values() : null), { once: true });
  });
}

// Asks a question, sends the change that it is about, and announces the outcome.
async function act(question, path, bodyOf, done) {
  if (!hasToken() && !(await page.askForToken())) {
    return;
  }
  const answer = await confirm(question);
  if (answer === null) {
    return;
  }
  try {
    const outcome = await change(path, bodyOf(answer));
    page.announce(done(answer, outcome));
  } catch (error) {
    page.announce(`${question.title}: ${error.message}`, true);
  }
  await page.refresh();
}

export function pause(item) {
  const name = plain(nameText(item));
  return act(
    { title: `Pause "${name}"?`, text: "Nothing is granted until it is resumed. Waiting requests keep their places, and holders keep what they have.", action: "Pause" },
    "/api/v1/pause",
    () => nameOf(item),
    () => `"${name}" is paused`,
  );
}

export function resume(item) {
  const name = plain(nameText(item));
  return act(
    { title: `Resume "${name}"?`, text: "Waiting requests are granted what fits.", action: "Resume" },
    "/api/v1/resume",
    () => nameOf(item),
    () => `"${name}" is in service`,
  );
}

export async function resize(item) {
  const name = plain(nameText(item));
  const queue = await read("/api/v1/waiters", { kind: "semaphore", ...nameOf(item), limit: 1000 }).catch(() => null);
  return act(
    {
      title: `Resize "${name}"`,
      text: "If more is in use than the new capacity, nothing is granted until enough is released. Waiting requests for more than the new capacity are refused.",
      action: "Resize",
      fields: [{ ...CAPACITY, value: item.capacity }],
      noteOf: ({ capacity }) => refusedText(queue, capacity),
    },
    "/api/v1/resize",
    ({ capacity }) => ({ ...nameOf(item), capacity: Number(capacity), generation: item.generation }),
    ({ capacity }) => `"${name}" has the capacity ${capacity}`,
  );
}

// Returns a text that says how many waiting requests a smaller capacity refuses.
function refusedText(queue, capacity) {
  if (queue === null) {
    return "The queue cannot be read, so it is not known how many waiting requests are refused.";
  }
  const count = queue.items.filter((waiter) => waiter.resources > Number(capacity)).length;
  const least = queue.next === null ? "" : "at least ";
  return count === 0 && queue.next === null
    ? ""
    : `▲ ${least}${amount(count)} of ${amount(queue.total)} waiting requests ${count === 1 ? "is" : "are"} refused`;
}

export function slots(item, out) {
  const name = plain(nameText(item));
  return act(
    {
      title: `Slots of "${name}"`,
      text: `A slot that is out of service is not granted; its holder keeps it. Out of service now: ${item.slots_out.length > 0 ? out : "none"}.`,
      action: "Change",
      fields: [
        { key: "slot", label: "Slot", type: "number", min: 0, max: 65_535, value: item.slots_out[0] },
        { key: "service", label: "Put it", options: item.slots_out.length > 0 ? [["in", "into service"], ["out", "out of service"]] : [["out", "out of service"], ["in", "into service"]] },
      ],
    },
    "/api/v1/slot",
    ({ slot, service }) => ({ ...nameOf(item), slot: Number(slot), service }),
    ({ slot, service }) => `slot ${slot} of "${name}" is ${service} ${service === "in" ? "" : "of "}service`,
  );
}

export function remove(item) {
  const name = plain(nameText(item));
  return act(
    {
      title: `Remove "${name}"?`,
      text: "Waiting requests are refused. The grace period is for a removal that does not wait for holders.",
      action: "Remove",
      fields: [
        { key: "when", label: "When", options: [["idle", "at once, only if nothing is in use"], ["last-holder", "when the last holder releases"], ["now", "after the grace period, even while it is in use"]] },
        GRACE,
      ],
    },
    "/api/v1/remove",
    ({ when, grace }) => ({ ...nameOf(item), when, ...(when === "now" ? graceOf(grace) : {}), generation: item.generation }),
    ({ when }) => `"${name}" is ${when === "idle" ? "removed" : "being removed"}`,
  );
}

function graceOf(seconds) {
  return { grace_ms: Math.round(Number(seconds) * 1000) };
}

function revoke(title, text, fields, bodyOf, done) {
  return act(
    { title, text, action: "Revoke", fields: [...fields, GRACE] },
    "/api/v1/revoke",
    ({ grace, ...values }) => ({ ...bodyOf(values), ...graceOf(grace) }),
    done,
  );
}

// Returns the end of a message about a revocation, which states the grace period if there is one.
function within(seconds) {
  return Number(seconds) > 0 ? `, with a grace period of ${seconds} s` : "";
}

export function revokeGrant(holder, item) {
  return revoke(
    `Revoke grant ${holder.grant}?`,
    `Its holder loses ${amount(holder.resources)} of "${plain(nameText(item))}" when the grace period ends, and with it all other names of the same grant.`,
    [],
    () => ({ grant: holder.grant }),
    ({ grace }) => `grant ${holder.grant} is revoked${within(grace)}`,
  );
}

export function revokeSession(session) {
  return revoke(
    `Revoke session ${session.session}?`,
    "It ends when the grace period ends, and everything that it holds is released.",
    [],
    () => ({ session: session.session }),
    ({ grace }) => `session ${session.session} is revoked${within(grace)}`,
  );
}

export function revokeClient(named = "") {
  return revoke(
    "Revoke all sessions of a client?",
    "They end when the grace period ends, and everything that they hold is released.",
    [{ key: "client", label: "An address, a network, token:NAME or certificate:NAME", type: "text", value: named }],
    ({ client }) => ({ client }),
    ({ client, grace }, { sessions }) => `${amount(sessions)} sessions of ${plain(client)} are revoked${within(grace)}`,
  );
}

export function cancel(waiter, item) {
  return act(
    { title: `Cancel request ${waiter.grant}?`, text: `It leaves the queue of "${plain(nameText(item))}". Its session keeps what it holds.`, action: "Cancel it" },
    "/api/v1/cancel",
    () => ({ request: waiter.grant }),
    () => `request ${waiter.grant} is canceled`,
  );
}
