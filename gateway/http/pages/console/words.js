/* Numbers as people read them. */

const NONE = "–";

export function milliseconds(ms) {
  if (ms === null || ms === undefined) return NONE;
  if (Math.abs(ms) >= 10_000) return `${(ms / 1e3).toFixed(1)} s`;
  return `${ms.toFixed(Math.abs(ms) >= 100 ? 0 : 1)} ms`;
}

export function seconds(s) {
  return milliseconds(s === null || s === undefined ? s : s * 1e3);
}

export function count(number) {
  return number === null || number === undefined ? NONE : number.toLocaleString("en");
}

export function bytes(number) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let place = 0;
  while (number >= 1000 && place < units.length - 1) {
    number /= 1000;
    place += 1;
  }
  return `${number.toFixed(place && number < 100 ? 1 : 0)} ${units[place]}`;
}

export function percent(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)} %` : NONE;
}
