// The form of a token.

import { Misuse } from "./failures.js";

/**
 * A token without the white space around it, such as the end of its line in a file.
 *
 * @throws Misuse, if it is empty, or has a character that no token has and no request can have
 */
export function parseToken(given: string): string {
  const token = given.trim();
  if (!/^[ -~]+$/.test(token)) {
    const why = token === "" ? "the token is empty" : "the token has a line break or another character that no token has";
    throw new Misuse(`${why}; "signalbox token create" makes one`);
  }
  return token;
}
