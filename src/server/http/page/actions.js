// Changes. Each is confirmed in a dialog that names what will happen, and needs a token with the right to administer.

import { change, hasToken } from "/api.js";
import { nameOf, nameText, plain } from "/text.js";

const dialog = document.getElementById("confirm-dialog");
const ok = document.getElementById("confirm-ok");
const numberLabel = document.getElementById("confirm-number-label");
const number = document.getElementById("confirm-number");

// Set by the page: asks for a token, says what was done, and shows the result.
export const page = { askForToken: async () => false, announce: () => {}, refresh: async () => {} };

// Asks whether to go on. The answer is true, or the number if one is asked for; `null`: no.
function confirm({ title, text, action, numberName, value }) {
  document.getElementById("confirm-title").textContent = title;
  document.getElementById("confirm-text").textContent = text;
  ok.textContent = action;
  numberLabel.hidden = numberName === undefined;
  number.required = numberName !== undefined;
  number.value = value ?? "";
  document.getElementById("confirm-number-name").textContent = numberName ?? "";
  // Escape leaves the last value in place.
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const isConfirmed = dialog.returnValue === "ok";
      resolve(isConfirmed ? (numberName === undefined ? true : Number(number.value)) : null);
    }, { once: true });
  });
}

async function act(question, path, bodyOf, done) {
  if (!hasToken() && !(await page.askForToken())) {
    return;
  }
  const answer = await confirm(question);
  if (answer === null) {
    return;
  }
  try {
    await change(path, bodyOf(answer));
    page.announce(done(answer));
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

export function resize(item) {
  const name = plain(nameText(item));
  return act(
    { title: `Resize "${name}"`, text: "If more is in use than the new capacity, nothing is granted until enough was released.", action: "Resize", numberName: "Capacity", value: item.capacity },
    "/api/v1/resize",
    (capacity) => ({ ...nameOf(item), capacity }),
    (capacity) => `"${name}" has the capacity ${capacity}`,
  );
}

export function revokeGrant(holder, item) {
  return act(
    { title: `Revoke grant ${holder.grant}?`, text: `Its holder loses ${holder.resources} of "${plain(nameText(item))}" at once, and with it all other names of the same grant.`, action: "Revoke" },
    "/api/v1/revoke",
    () => ({ grant: holder.grant }),
    () => `grant ${holder.grant} is revoked`,
  );
}

export function revokeSession(session) {
  return act(
    { title: `Revoke session ${session.session}?`, text: "It ends at once, and everything that it holds is released.", action: "Revoke" },
    "/api/v1/revoke",
    () => ({ session: session.session }),
    () => `session ${session.session} has ended`,
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
