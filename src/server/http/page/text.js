// Shows names, labels, times and amounts.
//
// A name may be any bytes. Everything here becomes text nodes, so markup stays text. Characters that are invisible or
// change the direction of the following text are written as escapes, and so are accents that would cover other lines.

const SHOWN_MAX = 120;

const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/u;

// The most accents of one character. Further ones are escaped.
const ACCENTS_MAX = 4;

const encoder = new TextEncoder();

// Returns the parts of a text, each as [text, whether it is an escape], and whether the text is cut.
function parts(text) {
  const parts = [];
  let plain = "";
  let count = 0;
  let accents = 0;
  for (const character of text) {
    count += 1;
    if (count > SHOWN_MAX) {
      break;
    }
    accents = /\p{M}/u.test(character) ? accents + 1 : 0;
    if (HIDDEN.test(character) || accents > ACCENTS_MAX) {
      if (plain) {
        parts.push([plain, false]);
      }
      plain = "";
      parts.push([`\\u{${character.codePointAt(0).toString(16)}}`, true]);
    } else {
      plain += character;
    }
  }
  if (plain) {
    parts.push([plain, false]);
  }
  return [parts, count > SHOWN_MAX];
}

function span(text, className) {
  const element = document.createElement("span");
  element.className = className;
  element.textContent = text;
  return element;
}

// Returns an element that shows a text in its own direction, with its length if it is cut.
export function shown(text) {
  const element = document.createElement("bdi");
  const [pieces, isCut] = parts(text);
  for (const [piece, isEscape] of pieces) {
    element.append(isEscape ? span(piece, "escaped") : piece);
  }
  if (isCut) {
    element.append(span(`… (${amount(encoder.encode(text).length)} bytes)`, "quiet"));
  }
  return element;
}

// Returns the content of `shown` as a string, for titles and messages.
export function plain(text) {
  return shown(text).textContent;
}

// Returns the name of an object as a parameter: `name` or `name_hex`.
export function nameOf(object) {
  return object.name_hex === undefined ? { name: object.name } : { name_hex: object.name_hex };
}

// Returns the text of a name, or its bytes if it is not UTF-8.
export function nameText(object) {
  return object.name_hex === undefined ? object.name : `bytes ${object.name_hex}`;
}

export function labelText(object) {
  return object.label_hex === undefined ? (object.label ?? "") : `bytes ${object.label_hex}`;
}

// Returns a key that differs for every name.
export function nameKey(object) {
  return object.name_hex === undefined ? `n${object.name}` : `h${object.name_hex}`;
}

export function amount(number) {
  return typeof number === "number" ? number.toLocaleString("en") : "–";
}

export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? number : number.toFixed(1)} ${units[unit]}`;
}

// Returns the text of a time in seconds, in its two largest units.
export function duration(seconds) {
  if (seconds === null || seconds === undefined) {
    return "–";
  }
  const whole = Math.max(0, Math.floor(seconds));
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, length]) => whole >= length);
  if (first === -1) {
    return "0 s";
  }
  const [name, length] = units[first];
  const rest = units[first + 1];
  const text = `${Math.floor(whole / length)} ${name}`;
  const left = rest ? Math.floor((whole % length) / rest[1]) : 0;
  return left > 0 ? `${text} ${left} ${rest[0]}` : text;
}
