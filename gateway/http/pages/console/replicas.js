/* Pools and replicas as the gateway sees them: state, load, and whose the blocks of KV are. */

import { ApiError } from "./api.js";
import { historyDrawing, partsDrawing, swatch } from "./drawings.js";
import { byId, element, table } from "./elements.js";
import { count, percent } from "./words.js";

const PERIOD_MS = 2000;
const MAX_HISTORY = 120; // looks: four minutes
const KINDS = {
  live: "of running requests",
  leased: "of handoffs",
  cached: "kept for prompts to come, given up when needed",
  quarantined: "may still be written by a transfer that failed",
  free: "hold nothing",
};
const REMEDIES = {
  401: "Replicas are shown to who has a key: give an operator's, above.",
  403: "Replicas are shown to operators: give a key of gateway.operator_keys, above.",
  404: "The public port does not tell of replicas: open the console at gateway.admin_port.",
};

export class Replicas {
  #api;
  #timer = null;
  #isShown = false;
  #isPaused = false;
  #history = new Map(); // by epoch: shares of blocks in use
  #states = new Map(); // by replica

  constructor(api) {
    this.#api = api;
    byId("pause").addEventListener("click", () => {
      this.#isPaused = !this.#isPaused;
      byId("pause").setAttribute("aria-pressed", this.#isPaused);
      this.#again();
    });
    document.addEventListener("visibilitychange", () => this.#again());
  }

  /** Look while it is shown: each look asks every replica. */
  setShown(isShown) {
    this.#isShown = isShown;
    this.#again();
  }

  #again() {
    clearTimeout(this.#timer);
    this.#timer = null;
    if (this.#isShown && !this.#isPaused && !document.hidden) {
      this.#timer = setTimeout(() => this.#look(), 0);
    }
  }

  async #look() {
    const timer = this.#timer;
    try {
      const status = await this.#api.get("debug/status");
      if (this.#timer !== timer) return; // hidden or paused meanwhile
      this.#draw(status);
      byId("replicas-alert").replaceChildren();
      byId("looked").textContent = `As of ${new Date().toLocaleTimeString()}`;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (this.#timer !== timer) return;
      const message = REMEDIES[error.status] ?? error.message;
      const alert = byId("replicas-alert");
      if (alert.textContent !== message) {
        alert.replaceChildren(element("p", { class: "alert" }, message));
      }
      if (error.status in REMEDIES) return; // until it is shown again, or a key is given
    }
    this.#timer = setTimeout(() => this.#look(), PERIOD_MS);
  }

  #draw({ pools, num_waiting: numWaiting }) {
    const rows = Object.values(pools).flat();
    this.#tellChanges(rows);
    const epochs = new Set(rows.map(({ epoch }) => epoch));
    for (const epoch of this.#history.keys()) if (!epochs.has(epoch)) this.#history.delete(epoch);
    const focused = document.activeElement?.getAttribute("aria-label");
    byId("pools").replaceChildren(
      element("p", {}, `${count(numWaiting)} requests wait at this gateway for a place.`),
      this.#table(pools),
      legend(),
    );
    // What was drawn anew is not what had the focus, which must not jump from under a reader.
    const again = [...byId("pools").querySelectorAll("[tabindex]")];
    again.find((one) => one.getAttribute("aria-label") === focused)?.focus({ preventScroll: true });
  }

  #table(pools) {
    const sizes = Object.entries(pools).map(([role, replicas]) => `${replicas.length} ${role}`);
    const headings = ["replica", "pool", "state", "running", "waiting", "blocks of KV", "lately", "slowness", "engine"];
    const all = Object.entries(pools).flatMap(([role, ones]) => ones.map((one) => [role, one]));
    const rows = all.map(([role, one]) => [
      one.replica,
      role,
      element("span", { class: isWell(one) ? "good" : "wrong" }, state(one)),
      count(one.num_running),
      one.num_queued_tokens ? `${count(one.num_waiting)}; ${count(one.num_queued_tokens)} tokens` : count(one.num_waiting),
      one.kv ? kv(one) : "–",
      one.kv ? this.#lately(one) : "–",
      one.slowness === undefined ? "–" : `${one.slowness.toFixed(2)} x`,
      engine(one.engine),
    ]);
    return table(`Replicas: ${sizes.join(", ")}`, headings, rows);
  }

  #lately({ epoch, replica, kv: blocks, num_blocks: total }) {
    const history = this.#history.get(epoch) ?? [];
    history.push(total ? inUse(blocks) / total : 0);
    this.#history.set(epoch, history.slice(-MAX_HISTORY));
    const [low, high] = [Math.min(...history), Math.max(...history)];
    const label = `Blocks in use at ${replica} lately: ${percent(low, 1)} to ${percent(high, 1)}`;
    return historyDrawing(label, this.#history.get(epoch), MAX_HISTORY);
  }

  /** In words, for those who do not see the table change. */
  #tellChanges(rows) {
    const now = new Map(rows.map((one) => [one.replica, state(one)]));
    const changes = [...now].filter(([id, is]) => this.#states.get(id) !== is).map(([id, is]) => `${id}: ${is}`);
    const gone = [...this.#states.keys()].filter((id) => !now.has(id)).map((id) => `${id}: gone`);
    const isFirst = this.#states.size === 0;
    this.#states = now;
    if (!isFirst && changes.length + gone.length) {
      byId("changes").textContent = [...changes, ...gone].join("; ");
    }
  }
}

function isWell(one) {
  return one.is_reachable && one.is_ready;
}

function state(one) {
  if (!one.is_reachable) return `cannot be asked: ${one.trouble}`;
  return one.is_ready ? "ready" : "takes no requests";
}

function inUse({ live, leased, quarantined }) {
  return live + leased + quarantined;
}

function kv({ kv: blocks, num_blocks: total }) {
  const words = Object.keys(KINDS)
    .filter((kind) => blocks[kind])
    .map((kind) => `${count(blocks[kind])} ${kind}`);
  const parts = Object.keys(KINDS).map((kind) => [kind, blocks[kind]]);
  return element(
    "div",
    { class: "kv" },
    partsDrawing(parts, total),
    element("span", { class: "soft" }, `${words.join(", ")} of ${count(total)}`),
  );
}

function engine(facts) {
  if (!facts) return "–";
  const { model, architecture, dtype, quantize, device, passes, kernels } = facts;
  return [model || architecture, dtype, quantize !== "none" && quantize, device, passes, kernels].filter(Boolean).join(", ");
}

function legend() {
  const items = Object.entries(KINDS).map(([kind, words]) =>
    element("li", {}, swatch(kind), `${kind}: ${words}`),
  );
  return element("ul", { class: "legend", "aria-label": "Blocks of KV" }, ...items);
}
