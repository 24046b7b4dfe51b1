// The third tab: a conversation that rolls, with what each turn costs.

import { get, stream } from "./api.js";
import { $, el, say } from "./dom.js";
import { count, percent, plural } from "./words.js";

const turns = []; // {role, content, node}
let longest = 0, under_way = null;

export async function open() {
  $("chat-text").focus({ preventScroll: true });
  if (longest) return;
  const { data } = await get("/v1/models");
  longest = data[0].max_model_len ?? 0;
  if (!longest) return;
  $("chat-tokens").max = Math.max(1, longest - 1);
  $("chat-tokens").value = Math.min(Number($("chat-tokens").value), Math.max(16, longest >> 2));
  meter(0, 0);
}

export function prepare() {
  $("chat-form").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("chat-text").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  $("chat-stop").addEventListener("click", () => under_way?.abort());
  $("chat-clear").addEventListener("click", clear);
}

function clear() {
  under_way?.abort();
  turns.length = 0;
  $("transcript").replaceChildren($("chat-empty") ?? "");
  meter(0, 0);
  $("chat-text").focus();
}

async function send() {
  const content = $("chat-text").value.trim();
  if (!content || under_way) return;
  $("chat-text").value = "";
  if (!turns.length) $("transcript").replaceChildren();
  add("user", content);
  const messages = turns.map(({ role, content: said }) => ({ role, content: said }));
  const answer = add("assistant", "");
  answer.node.classList.add("pending");
  under_way = new AbortController();
  waiting(true);
  try {
    await receive(messages, answer, under_way.signal);
  } catch (error) {
    if (error.name === "AbortError") note(answer, "stopped");
    else fail(answer, error);
  }
  answer.node.classList.remove("pending");
  under_way = null;
  waiting(false);
}

async function receive(messages, answer, signal) {
  const began = performance.now();
  let first = null, usage = null, dropped = null, reason = null;
  const body = {
    messages,
    stream: true,
    stream_options: { include_usage: true },
    truncation: "auto",
    temperature: Number($("chat-temperature").value),
    max_tokens: Math.max(1, Number($("chat-tokens").value) || 128),
  };
  for await (const event of stream("/v1/chat/completions", body, signal)) {
    if (event.brim) markDropped((dropped = event.brim));
    if (event.usage) usage = event.usage;
    const choice = event.choices[0];
    reason = choice?.finish_reason ?? reason;
    if (choice?.delta?.content) {
      first ??= performance.now();
      grow(answer, choice.delta.content);
    }
  }
  if (usage) note(answer, cost(usage, began, first ?? began, dropped, reason));
  if (usage) meter(usage.prompt_tokens + usage.completion_tokens, dropped?.evicted_tokens ?? 0);
}

function cost(usage, began, first, dropped, reason) {
  const rate = (1000 * (usage.completion_tokens - 1)) / Math.max(1, performance.now() - first);
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const parts = [
    `${plural(usage.prompt_tokens, "token")} of prompt, ${count(cached)} found in the KV pool`,
    `${count(usage.completion_tokens)} of answer`,
    `first after ${Math.round(first - began)} ms`,
  ];
  if (usage.completion_tokens > 1) parts.push(`${count(rate)} a second`);
  if (dropped?.evicted_tokens) parts.push(`${count(dropped.evicted_tokens)} dropped`);
  if (reason === "length") parts.push("cut at its length");
  return parts.join(" · ");
}

function add(role, content) {
  const text = el("span", {}, content);
  const name = el("span", { class: "unseen" }, role === "user" ? "You: " : "Model: ");
  const node = el("div", { class: `turn ${role}` }, name, text);
  const turn = { role, content, node, text };
  turns.push(turn);
  $("transcript").append(node);
  toEnd();
  return turn;
}

function grow(turn, more) {
  turn.node.classList.remove("pending");
  turn.content += more;
  turn.text.textContent = turn.content;
  toEnd();
}

function note(turn, text) {
  turn.node.append(el("span", { class: "cost" }, text));
  toEnd();
}

// What failed is not part of the conversation; the message can be sent again.
function fail(turn, error) {
  turns.splice(turns.indexOf(turn), 1);
  turn.node.append(el("span", { class: "wrong", role: "alert" }, `Not answered: ${error.message}.`));
  if (turns.at(-1)?.role === "user") $("chat-text").value ||= turns.pop().content;
  toEnd();
}

// The oldest messages that the model does not see any more.
function markDropped({ evicted_turns: messages, evicted_tokens: tokens }) {
  document.querySelector(".cut")?.remove();
  turns.forEach((turn, number) => turn.node.classList.toggle("dropped", number < messages));
  if (!messages) return;
  const words = `${plural(messages, "message")} above, ${plural(tokens, "token")}, no longer seen by the model`;
  turns[messages]?.node.before(el("p", { class: "cut" }, words));
}

function meter(used, dropped) {
  $("context-used").style.width = longest ? `${Math.min(100, (100 * used) / longest)}%` : "0";
  const said = `${count(used)} of ${plural(longest, "token")} of context (${percent(used, longest)})`;
  say($("context-said"), dropped ? `${said}; ${count(dropped)} older ones dropped` : said);
}

function waiting(yes) {
  $("chat-send").hidden = yes;
  $("chat-stop").hidden = !yes;
  $("transcript").setAttribute("aria-busy", yes);
  if (!yes) $("chat-text").focus({ preventScroll: true });
}

const toEnd = () => ($("transcript").scrollTop = $("transcript").scrollHeight);
