// The token of the requests. A file is read again while the client runs, so that a token can be replaced.

import { readFileSync } from "node:fs";

import { now } from "../clock.js";
import { Misuse } from "../failures.js";
import { parseToken } from "../token.js";

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

  get isGiven(): boolean {
    return this.#text !== undefined;
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
      this.#text = parseToken(readFileSync(this.#file, "utf8"));
    } catch (error) {
      // A file that is just being written may be empty.
      if (this.#text === undefined) {
        this.#readAt = -Infinity;
        throw new Misuse(`the token cannot be read from the file "${this.#file}": ${(error as Error).message}`);
      }
    }
  }
}
