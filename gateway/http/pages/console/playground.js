/*
 * The playground: a conversation, or a text that goes on, and when each token of it came.
 *
 *   idle --send--> asking --first text--> answering --end, stop or failure--> idle
 */

import { ApiError } from "./api.js";
import { gapsDrawing, pathFigure } from "./drawings.js";
import { byId, element, facts, table } from "./elements.js";
import { quantile, Timings } from "./timings.js";
import { count, milliseconds } from "./words.js";

export class Playground {
  #api;
  #told;
  #messages = [];
  #abort = null;

  /** `told` hears of each request that has ended: its id, timings and receipt. */
  constructor(api, told) {
    this.#api = api;
    this.#told = told;
    byId("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    byId("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("ask").requestSubmit();
    });
    byId("stop").addEventListener("click", () => this.#abort?.abort());
    byId("begin-anew").addEventListener("click", () => this.#beginAnew());
  }

  /** Lets the user choose among the names of the model and its adapters. */
  offer(names) {
    const chosen = byId("model").value;
    byId("model").replaceChildren(...names.map((name) => element("option", {}, name)));
    if (names.includes(chosen)) byId("model").value = chosen;
    byId("model-label").hidden = names.length < 2;
  }

  async #send() {
    const prompt = byId("prompt").value;
    if (this.#abort || !prompt.trim()) return;
    const form = new FormData(byId("ask"));
    const isChat = form.get("kind") === "chat";
    const asked = { role: "user", content: prompt };
    const abort = (this.#abort = new AbortController());
    const shown = [addTurn(isChat ? "You" : "Text", prompt), addTurn("Model", "")];
    const answer = new Answer(shown[1]);
    this.#turn(true);
    byId("prompt").value = "";
    try {
      const body = isChat
        ? { messages: [...system(form), ...this.#messages, asked] }
        : { prompt };
      const path = isChat ? "v1/chat/completions" : "v1/completions";
      const events = this.#api.stream(
        path,
        { ...body, ...model(form), ...options(form), ...EXTRAS },
        answer.id,
        abort.signal,
      );
      for await (const event of events) answer.take(event);
      answer.end("Done");
    } catch (error) {
      if (!abort.signal.aborted) this.#fail(error);
      answer.end(abort.signal.aborted ? "Stopped" : "Failed");
      if (answer.isEmpty && this.#abort === abort) {
        shown.forEach((turn) => turn.remove());
        byId("prompt").value ||= prompt; // to be sent again
      }
    } finally {
      if (isChat && answer.content && this.#abort === abort) {
        this.#messages.push(asked, { role: "assistant", content: answer.content });
      }
      if (!answer.isEmpty) this.#told(answer);
      if (this.#abort === abort) this.#turn(false);
    }
  }

  #fail(error) {
    byId("ask-alert").append(element("p", { class: "alert" }, error.message));
    if (error instanceof ApiError && error.status === 401) byId("open-key").focus();
  }

  #turn(isAsking) {
    if (isAsking) byId("ask-alert").replaceChildren();
    else this.#abort = null;
    byId("send").disabled = isAsking;
    byId("stop").disabled = !isAsking;
    if (!isAsking && document.activeElement === document.body) byId("prompt").focus();
  }

  #beginAnew() {
    this.#abort?.abort();
    this.#turn(false);
    this.#messages = [];
    byId("turns").replaceChildren();
    byId("ask-alert").replaceChildren();
    byId("progress").textContent = "";
    byId("prompt").focus();
  }
}

const EXTRAS = {
  stream: true,
  stream_options: { include_usage: true, continuous_usage_stats: true },
  receipt: true,
  return_progress: true,
};

/** One answer as it comes: its text in the conversation, its times beside it. */
class Answer {
  id = `console-${crypto.getRandomValues(new Uint32Array(3)).join("-")}`;
  timings = new Timings(performance.now());
  receipt = null;
  content = "";
  #hasReasoning = false;
  #turn;
  #text;
  #isDrawn = true;

  constructor(turn) {
    this.#turn = turn;
    this.#text = turn.querySelector(".text");
    this.#text.setAttribute("aria-busy", "true");
    byId("progress").textContent = "Asked";
  }

  get isEmpty() {
    return this.timings.arrivals.length === 0;
  }

  take(event) {
    if (event.prompt_progress) byId("progress").textContent = progressWords(event.prompt_progress);
    if (event.baton) this.receipt = event.baton;
    const choice = event.choices?.[0];
    const text = choice?.text ?? choice?.delta?.content ?? "";
    const reasoning = choice?.delta?.reasoning_content ?? "";
    if (text) {
      this.content += text;
      this.#text.append(text);
    }
    if (reasoning) this.#reason(reasoning);
    if (text || reasoning) {
      if (this.isEmpty) byId("progress").textContent = "Answering";
      this.timings.arrive(performance.now(), event.usage?.completion_tokens);
      this.#drawSoon();
    } else if (event.usage && !this.isEmpty) {
      this.timings.numTokens = event.usage.completion_tokens;
    }
  }

  end(word) {
    this.#text.removeAttribute("aria-busy");
    const { numTokens, arrivals } = this.timings;
    const took = arrivals.length ? arrivals.at(-1).atMs - this.timings.sentMs : 0;
    byId("progress").textContent = arrivals.length
      ? `${word}: ${count(numTokens)} tokens in ${milliseconds(took)}`
      : word;
    if (!this.isEmpty) this.#draw();
  }

  #reason(text) {
    if (!this.#hasReasoning) {
      this.#hasReasoning = true;
      this.#text.before(element("div", { class: "text reasoning" }));
    }
    this.#turn.querySelector(".reasoning").append(text);
  }

  /** With the next frame: tokens may come faster than a screen shows them. */
  #drawSoon() {
    if (!this.#isDrawn) return;
    this.#isDrawn = false;
    requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    this.#isDrawn = true;
    byId("measured").replaceChildren(...measured(this));
  }
}

function measured({ id, timings, receipt }) {
  const gaps = timings.gaps;
  const rate = timings.tokensPerSecond;
  const parts = [
    facts([
      ["First token", milliseconds(timings.firstTokenMs)],
      ["Tokens", count(timings.numTokens)],
      ["Tokens a second", rate === null ? "–" : rate.toFixed(1)],
      ["Gap, median", milliseconds(quantile(gaps, 0.5))],
      ["Gap, 95 %", milliseconds(quantile(gaps, 0.95))],
      ["Gap, longest", milliseconds(gaps.length ? quantile(gaps, 1) : null)],
    ]),
    element(
      "figure",
      {},
      gapsDrawing(gaps),
      element("figcaption", {}, "Time between one arrival and the next, as this page saw them."),
    ),
  ];
  return receipt ? [...parts, ...receiptParts(id, timings, receipt)] : parts;
}

function receiptParts(id, timings, receipt) {
  const rows = Object.entries(receipt).map(([name, value]) => [
    element("code", {}, name),
    Array.isArray(value) ? value.join("; ") || "none" : String(value) || "none",
  ]);
  return [
    element("h4", {}, "Its way"),
    pathFigure(receipt, timings.firstTokenMs),
    element("p", { class: "reason" }, receipt.placement),
    ...receipt.notes.map((note) => element("p", { class: "alert" }, note)),
    element(
      "p",
      {},
      element("a", { href: `#request/${encodeURIComponent(id)}` }, "Why it ran there"),
    ),
    element("details", {}, element("summary", {}, "The receipt"), table("Receipt", ["field", "value"], rows)),
  ];
}

function addTurn(who, text) {
  const turn = element(
    "li",
    {},
    element("b", {}, who),
    element("div", { class: "text" }, text),
  );
  byId("turns").append(turn);
  return turn;
}

function system(form) {
  const content = form.get("system");
  return content.trim() ? [{ role: "system", content }] : [];
}

/** The name that is chosen, once names are known. */
function model(form) {
  return form.get("model") ? { model: form.get("model") } : {};
}

/** Only what was filled in: the rest is the model's own. */
function options(form) {
  const names = ["max_tokens", "temperature", "seed"];
  const given = names.filter((name) => form.get(name) !== "");
  return Object.fromEntries(given.map((name) => [name, Number(form.get(name))]));
}

function progressWords({ state, position, processed, total, eta_ms: etaMs }) {
  const where = {
    queued: `Waits for a place, ${position} before it`,
    in_line: `In line for a prefill replica, ${position} before it`,
    computed: `Prompt: ${count(processed)} of ${count(total)} tokens`,
  };
  return `${where[state] ?? "Waits"}; first token in about ${milliseconds(etaMs)}`;
}
