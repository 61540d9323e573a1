// The token of the requests. A file is read again while the client runs, so that a token can be replaced.

import { readFileSync } from "node:fs";

import { now } from "../clock.js";
import { Misuse } from "../failures.js";

/** How long a token of a file is used before the file is read again. */
const READ_AFTER_MS = 5_000;

export class Token {
  readonly #file: string | undefined;
  #text: string | undefined;
  #readAt = -Infinity;

  /** A token, or else the file that has it, or neither. */
  constructor(text: string | undefined, file: string | undefined) {
    this.#text = text;
    this.#file = text === undefined ? file : undefined;
  }

  current(): string | undefined {
    if (now() - this.#readAt > READ_AFTER_MS) {
      this.#read();
    }
    return this.#text;
  }

  /** The server has refused a token: whether there is another one now. */
  isReplaced(refused: string | undefined): boolean {
    this.#read();
    return this.#text !== refused;
  }

  #read(): void {
    if (this.#file === undefined) {
      return;
    }
    this.#readAt = now();
    try {
      // A file that is just being written may be empty.
      this.#text = readFileSync(this.#file, "utf8").trim() || this.#text;
    } catch (error) {
      if (this.#text === undefined) {
        throw new Misuse(`the file of the token cannot be read: ${(error as Error).message}`);
      }
    }
  }
}
