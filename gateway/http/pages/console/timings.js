/*
 * When the tokens of one answer came, as this page saw it.
 *
 *   sent ............ first ... .. .... . ... last
 *        first token       gaps: one an arrival, which may bring several tokens
 */

const TOGETHER_MS = 1; // what comes so soon after another came in one piece with it

export class Timings {
  constructor(sentMs) {
    this.sentMs = sentMs;
    this.arrivals = []; // { atMs, numTokens }, as they came
    this.numTokens = 0;
  }

  /** Text has come; `numTokens` is what the server has counted by now, or null if it has not. */
  arrive(atMs, numTokens) {
    const total = numTokens ?? this.numTokens + 1;
    const numNew = Math.max(total - this.numTokens, 0);
    const last = this.arrivals.at(-1);
    if (last && atMs - last.atMs < TOGETHER_MS) last.numTokens += numNew;
    else this.arrivals.push({ atMs, numTokens: numNew });
    this.numTokens = Math.max(total, this.numTokens);
  }

  get firstTokenMs() {
    return this.arrivals.length ? this.arrivals[0].atMs - this.sentMs : null;
  }

  /** Milliseconds between one arrival and the next. */
  get gaps() {
    return this.arrivals.slice(1).map(({ atMs }, index) => atMs - this.arrivals[index].atMs);
  }

  /** From the first arrival to the last, without the tokens that the first one brought. */
  get tokensPerSecond() {
    if (this.arrivals.length < 2) return null;
    const [first, last] = [this.arrivals[0], this.arrivals.at(-1)];
    const ms = last.atMs - first.atMs;
    return ms > 0 ? ((this.numTokens - first.numTokens) * 1e3) / ms : null;
  }
}

/** The smallest value that at least `fraction` of all values do not exceed. */
export function quantile(values, fraction) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.max(Math.ceil(fraction * sorted.length) - 1, 0)];
}

/** At most `limit` values: of each run of neighbours the largest, so that no stall is hidden. */
export function thinned(values, limit) {
  const width = Math.max(Math.ceil(values.length / limit), 1);
  const kept = [];
  for (let start = 0; start < values.length; start += width) {
    kept.push(Math.max(...values.slice(start, start + width)));
  }
  return kept;
}
