/* Why a request ran where it ran: the gateway's decisions, what it foresaw, and what came. */

import { ApiError } from "./api.js";
import { barsDrawing, pathFigure } from "./drawings.js";
import { byId, element, facts, table } from "./elements.js";
import { count, milliseconds, seconds } from "./words.js";

const MAX_RECENT = 50;
const SHOWN_ANYWAY = ["wait_s", "work_s"]; // terms of the cost that have columns of their own

export class Requests {
  #api;
  #recent = [];
  #asked = 0;

  constructor(api) {
    this.#api = api;
    byId("find").addEventListener("submit", (event) => {
      event.preventDefault();
      const hash = `#request/${encodeURIComponent(byId("request-id").value.trim())}`;
      if (location.hash === hash) this.show(byId("request-id").value.trim());
      else location.hash = hash;
    });
  }

  /** One that this page has asked for. */
  add({ id, timings, receipt }) {
    this.#recent.unshift({ id, timings, receipt });
    this.#recent.length = Math.min(this.#recent.length, MAX_RECENT);
    const rows = this.#recent.map((one) => [
      element("a", { href: `#request/${encodeURIComponent(one.id)}` }, one.id),
      count(one.receipt?.prompt_tokens),
      count(one.receipt?.cached_tokens),
      count(one.timings.numTokens),
      milliseconds(one.timings.firstTokenMs),
      one.receipt ? replicas(one.receipt.prefill_replica, one.receipt.decode_replica) : "–",
    ]);
    const headings = ["request", "prompt", "cached", "output", "first token", "prefill, decode"];
    byId("recent").replaceChildren(table("The latest first", headings, rows));
  }

  async show(id) {
    const asked = (this.#asked += 1);
    byId("request-id").value = id;
    byId("find-alert").replaceChildren();
    byId("explained").replaceChildren();
    if (!id) return;
    try {
      const told = await this.#api.get(`v1/requests/${encodeURIComponent(id)}`);
      if (asked !== this.#asked) return; // another one has been asked for meanwhile
      byId("explained").replaceChildren(
        ...this.#way(told.id),
        ...told.decisions.flatMap(decisionParts),
      );
      byId("explained").focus({ preventScroll: true });
    } catch (error) {
      if (asked !== this.#asked) return;
      if (!(error instanceof ApiError)) throw error;
      byId("find-alert").append(element("p", { class: "alert" }, error.message));
    }
  }

  /** Of one that was asked from here: of others there is no receipt. */
  #way(id) {
    const own = this.#recent.find((one) => one.id === id);
    if (!own?.receipt) return [];
    return [element("h3", {}, "Its way"), pathFigure(own.receipt, own.timings.firstTokenMs)];
  }
}

function decisionParts(decision, index) {
  return [
    element("h3", {}, `Decision ${index + 1}, attempt ${decision.attempt}`),
    element("p", { class: "reason" }, decision.reason),
    facts([
      ["Prefill", decision.prefill_replica],
      ["Decode", decision.decode_replica],
      ["Policy", decision.policy],
      ["Decided at", new Date(decision.decided_at * 1e3).toLocaleTimeString()],
      ["Prompt tokens", count(decision.prompt_tokens)],
      ["To be computed", count(decision.computed_tokens)],
      ["Waited for a place", seconds(decision.waited_s)],
      ["Of that, in line", seconds(decision.in_line_s)],
      ...(decision.adapter ? [["Adapter", decision.adapter]] : []),
      ["Session", decision.session || "none"],
    ]),
    ...predictions(decision),
    candidatesTable(decision),
    element("p", { class: "soft" }, others(decision)),
  ];
}

/** What was predicted against what came: of the first token, and from one token to the next. */
function predictions(decision) {
  const came = decision.outcome;
  const first = [
    ["foreseen when it came", "foreseen", decision.foreseen_s * 1e3],
    ["predicted when sent", "foreseen", decision.predicted_s * 1e3],
  ];
  if (came) first.push(["came", "came", came.first_token_s * 1e3]);
  if (came?.best_other) first.push([`at ${came.best_other}`, "foreseen", came.best_other_s * 1e3]);
  const parts = [drawn("First token", first)];
  if (!came) return [...parts, element("p", { class: "soft" }, "Its first token is not there yet.")];
  if (came.itl_s !== null && decision.predicted_itl_s !== null) {
    parts.push(
      drawn("From one output token to the next", [
        ["predicted", "foreseen", decision.predicted_itl_s * 1e3],
        [`took, over ${count(came.output_tokens)} tokens`, "came", came.itl_s * 1e3],
      ]),
    );
  }
  if (came.regret_s > 0) {
    const late = `${came.best_other} would have been ${seconds(came.regret_s)} sooner, had it kept to its prediction.`;
    parts.push(element("p", { class: "reason" }, late));
  }
  return parts;
}

function drawn(caption, rows) {
  return element("figure", {}, element("figcaption", {}, caption), barsDrawing(rows));
}

function candidatesTable({ candidates }) {
  const named = new Set(candidates.flatMap(({ terms }) => Object.keys(terms)));
  const terms = [...named].filter((name) => !SHOWN_ANYWAY.includes(name));
  const headings = ["first token", "wait", "work", "way", "held", "last word", "cost"];
  const rows = candidates.map((one) => {
    const isInSeconds = Object.keys(one.terms).length > 0; // a cost that is made of seconds is one
    return [
      one.is_chosen ? element("span", { class: "chosen" }, `${one.replica} (chosen)`) : one.replica,
      seconds(one.wait_s + one.work_s + one.latency_s),
      seconds(one.wait_s),
      seconds(one.work_s),
      seconds(one.latency_s),
      `${count(one.held_tokens)} tokens`,
      seconds(one.age_s),
      isInSeconds ? seconds(one.cost) : String(Number(one.cost.toPrecision(4))),
      ...terms.map((name) => seconds(one.terms[name])),
    ];
  });
  const caption = "Who might have computed the prompt, as predicted when it was sent";
  const named_terms = terms.map((name) => name.replace(/_s$/, "").replaceAll("_", " "));
  return table(caption, ["replica", ...headings, ...named_terms], rows);
}

function others({ num_candidates: number, candidates }) {
  const more = number - candidates.length;
  return more > 0 ? `${count(more)} more cost no less.` : "";
}

function replicas(prefill, decode) {
  return prefill && prefill !== decode ? `${prefill}, ${decode}` : decode;
}
