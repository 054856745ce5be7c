/*
 * Calls of the gateway that served this page.
 *
 * The key is held by this object alone: no storage, no cookie, no address has it, and it is
 * forgotten with the page.
 */

import { EventReader } from "./events.js";

const ROOT = new URL(".", document.baseURI); // also behind a proxy that adds a path

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export class Api {
  #key = "";

  /** Leaves out all but what a header may hold: a pasted key often ends with a line break. */
  useKey(key) {
    this.#key = key.trim();
  }

  get hasKey() {
    return this.#key !== "";
  }

  /** An answer in JSON. Raises ApiError. */
  async get(path) {
    return parsed(await (await this.#fetch(path, {})).text());
  }

  /** The body of an answer that is JSON whatever its status; null where there is none. */
  async ask(path) {
    try {
      return await (await fetch(new URL(path, ROOT), { cache: "no-store" })).json();
    } catch {
      return null;
    }
  }

  /** The events of a stream, as objects; ends at [DONE]. Raises ApiError, also in mid-stream. */
  async *stream(path, body, requestId, signal) {
    const response = await this.#fetch(path, {
      method: "POST",
      headers: { "content-type": "application/json", "x-request-id": requestId },
      body: JSON.stringify(body),
      signal,
    });
    const events = new EventReader();
    const decoder = new TextDecoder();
    for await (const piece of pieces(response.body)) {
      for (const data of events.read(decoder.decode(piece, { stream: true }))) {
        if (data === "[DONE]") return;
        const event = parsed(data);
        if (event.error) throw new ApiError(String(event.error.message), response.status);
        yield event;
      }
    }
    throw new ApiError("The stream broke off before its end.", response.status);
  }

  async #fetch(path, options) {
    const headers = { ...options.headers };
    if (this.#key) headers.authorization = `Bearer ${this.#key}`;
    let response;
    try {
      response = await fetch(new URL(path, ROOT), {
        ...options,
        headers,
        cache: "no-store",
        credentials: "omit",
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(`The gateway cannot be reached: ${error.message}`, 0);
    }
    if (!response.ok) throw new ApiError(await reason(response), response.status);
    return response;
  }
}

async function reason(response) {
  try {
    return String((await response.json()).error.message);
  } catch {
    return `The gateway answered ${response.status} ${response.statusText}.`;
  }
}

function parsed(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new ApiError("The gateway answered something that is not JSON.", 200);
  }
}

async function* pieces(body) {
  const reader = body.getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {}); // of a stream that was left early: the request is freed
  }
}
