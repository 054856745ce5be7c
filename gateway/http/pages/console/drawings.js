/* What is drawn. Every drawing has its numbers in words, too: beside it, or as its name. */

import { element, shape } from "./elements.js";
import { thinned } from "./timings.js";
import { bytes, count, milliseconds } from "./words.js";

const WIDTH = 600;
const MAX_BARS = 150;

/** Bars as high as the time between one arrival and the next; the longest reaches the top. */
export function gapsDrawing(gaps) {
  const height = 80;
  const bars = thinned(gaps, MAX_BARS);
  const longest = Math.max(...bars, 1);
  const width = WIDTH / Math.max(bars.length, 40);
  const drawn = bars.map((gap, index) => {
    const top = height * (1 - gap / longest);
    return shape("rect", {
      class: "gap",
      x: index * width,
      y: top,
      width: Math.max(width - 1, 0.5),
      height: height - top,
    });
  });
  return shape(
    "svg",
    {
      viewBox: `0 0 ${WIDTH} ${height + 1}`,
      role: "img",
      "aria-label": `Time between arrivals, ${bars.length} bars; the longest is ${milliseconds(longest)}`,
    },
    shape("line", { class: "axis", x1: 0, x2: WIDTH, y1: height, y2: height }),
    ...drawn,
  );
}

/**
 * A request's way, from its receipt: who worked on it, and for how long.
 *
 *   gateway     |before|
 *   prefill P          |queue|prefill|
 *   KV                       |transfer......|
 *   decode D                         |decode..........|
 *
 * All lengths are measured. The first token is where prefill ends; a transfer is drawn from where
 * prefill begins, for it goes on layer by layer meanwhile.
 */
export function pathOf(receipt, firstTokenMs) {
  const prefilledAt = receipt.prefill_replica || receipt.decode_replica;
  const worked = receipt.queue_ms + receipt.prefill_ms;
  const first = Math.max(firstTokenMs ?? worked, worked);
  const begun = first - receipt.prefill_ms;
  const steps = [
    { kind: "queue", who: "gateway, network", what: "before", from: 0, ms: first - worked },
    { kind: "queue", who: prefilledAt, what: "queue", from: first - worked, ms: receipt.queue_ms },
    {
      kind: "prefill",
      who: prefilledAt,
      what: `prefill, ${count(receipt.prompt_tokens - receipt.cached_tokens)} tokens computed, ${count(receipt.cached_tokens)} cached`,
      from: begun,
      ms: receipt.prefill_ms,
    },
    {
      kind: "decode",
      who: receipt.decode_replica,
      what: `decode, ${count(receipt.output_tokens)} tokens`,
      from: first,
      ms: receipt.decode_ms,
    },
  ];
  if (receipt.kv_bytes > 0) {
    steps.splice(3, 0, {
      kind: "transfer",
      who: `KV over ${receipt.transport || "an unnamed way"}`,
      what: `transfer, ${bytes(receipt.kv_bytes)}`,
      from: begun,
      ms: receipt.transfer_ms,
    });
  }
  return steps;
}

/**
 * A lane for each who, in order: its steps in words, and as bars. A long decode runs out of the
 * drawing, or nobody could see what came before it.
 */
function pathDrawing(steps) {
  const begun = Math.max(...steps.filter(({ kind }) => kind !== "decode").map(endOf));
  const end = Math.max(Math.min(Math.max(...steps.map(endOf)), 2 * begun), 1);
  const lanes = [...new Set(steps.map(({ who }) => who))].map((who) => {
    const own = steps.filter((step) => step.who === who);
    const words = own.map(({ what, ms }) => `${what}, ${milliseconds(ms)}`).join("; ");
    const bars = own.map(({ kind, from, ms }) => {
      const x = (from / end) * WIDTH;
      const width = Math.max((Math.min(ms, end - from) / end) * WIDTH, 2);
      return shape("rect", { class: kind, x, width, height: 10 });
    });
    return element("li", {}, element("b", {}, who), ` ${words}`, bar(WIDTH, ...bars));
  });
  return element("ol", { class: "lanes" }, ...lanes);
}

export function pathFigure(receipt, firstTokenMs) {
  const told = [
    "Lengths are the replicas' own; the first token is when it came here. A long decode goes on beyond the drawing.",
  ];
  if (receipt.attempts > 1) told.push(`It took ${receipt.attempts} attempts, which are added up.`);
  const caption = element("figcaption", {}, told.join(" "));
  return element("figure", {}, pathDrawing(pathOf(receipt, firstTokenMs)), caption);
}

function endOf({ from, ms }) {
  return from + ms;
}

/** One bar below the other, all to one scale: [name, class, milliseconds]. */
export function barsDrawing(rows) {
  const longest = Math.max(...rows.map(([, , ms]) => ms), 0.001);
  const items = rows.map(([name, kind, ms]) => {
    const width = Math.max((ms / longest) * WIDTH, 2);
    const drawn = bar(WIDTH, shape("rect", { class: kind, width, height: 10 }));
    return element("li", {}, element("span", {}, name), " ", element("span", {}, milliseconds(ms)), drawn);
  });
  return element("ul", { class: "bars" }, ...items);
}

/** As wide as there is room, and beside words that say the same. */
function bar(width, ...rects) {
  const view = { viewBox: `0 0 ${width} 10`, preserveAspectRatio: "none" };
  return shape("svg", { ...view, class: "bar", "aria-hidden": "true" }, ...rects);
}

/** Parts of a whole side by side: [class, number]; its words stand beside it. What is small is still seen. */
export function partsDrawing(parts, whole) {
  let x = 0;
  const drawn = parts
    .filter(([, number]) => number > 0)
    .map(([kind, number]) => {
      const width = Math.max((number / Math.max(whole, 1)) * WIDTH, 4);
      const part = shape("rect", { class: kind, x, width, height: 10 });
      x += width;
      return part;
    });
  return bar(Math.max(x, WIDTH), ...drawn);
}

/** A line through fractions of 0 to 1, the latest at the right; `places` fit in. */
export function historyDrawing(label, fractions, places) {
  const first = places - fractions.length;
  const points = fractions.map((fraction, index) => `${first + index},${24 - 22 * fraction}`);
  return shape(
    "svg",
    {
      viewBox: `0 0 ${places - 1} 25`,
      preserveAspectRatio: "none",
      role: "img",
      class: "history",
      "aria-label": label,
    },
    shape("line", { class: "axis", x1: 0, x2: places, y1: 24.5, y2: 24.5 }),
    shape("polyline", { class: "occupied", points: points.join(" ") }),
  );
}

/** A square of a colour, for legends. */
export function swatch(kind) {
  return shape(
    "svg",
    { viewBox: "0 0 12 12", "aria-hidden": "true" },
    shape("rect", { class: kind, width: 12, height: 12, rx: 2 }),
  );
}
