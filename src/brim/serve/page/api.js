// The server, asked. A key is kept in this tab only, and asked for when the server wants one.

import { $ } from "./dom.js";

const KEY = "brim-api-key";

export class Refused extends Error {
  constructor(status, error, retryAfter) {
    super(error?.message ?? `the server answered ${status}`);
    this.status = status;
    this.code = error?.code ?? null;
    this.retryAfter = retryAfter;
  }
}

let asking = null; // the dialog, while it is open

async function answer(path, options) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
    const response = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
    if (response.ok) return response;
    if (response.status === 401) {
      await keyFromUser(key !== null && key === sessionStorage.getItem(KEY));
      continue;
    }
    const body = await response.json().catch(() => ({}));
    throw new Refused(response.status, body.error, Number(response.headers.get("retry-after")) || null);
  }
}

function keyFromUser(wrong) {
  asking ??= new Promise((resolve) => {
    const dialog = $("key-dialog");
    $("key-wrong").hidden = !wrong;
    $("key-text").value = "";
    dialog.addEventListener(
      "close",
      () => {
        const key = $("key-text").value.trim();
        if (key) sessionStorage.setItem(KEY, key);
        asking = null;
        resolve();
      },
      { once: true },
    );
    dialog.showModal();
  });
  return asking;
}

export const get = async (path) => (await answer(path, {})).json();

export const post = async (path, body, signal) => (await posted(path, body, signal)).json();

const posted = (path, body, signal) =>
  answer(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });

// The state of the server, which needs no key.
export async function health() {
  return (await fetch("/health", { cache: "no-store" })).json();
}

// The events of a streamed answer, as they come.
export async function* stream(path, body, signal) {
  const response = await posted(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const found = JSON.parse(data);
      if (found.error) throw new Refused(500, found.error, null);
      yield found;
    }
  }
}
