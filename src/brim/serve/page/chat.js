// The third tab: a conversation that rolls, with what each turn costs. It survives a reload (`saved.js`).

import { get, stream } from "./api.js";
import { $, el, say } from "./dom.js";
import { showExamples } from "./examples.js";
import * as images from "./images.js";
import { markdown } from "./markdown.js";
import { forget, load, save } from "./saved.js";
import { count, percent, plural } from "./words.js";

const turns = []; // {role, content, thought, images, cost, node, body}
let model = null, longest = 0, under_way = null;

export async function open() {
  $("chat-text").focus({ preventScroll: true });
  if (longest) return;
  const { data } = await get("/v1/models");
  model = data[0];
  longest = model.max_model_len ?? 0;
  if (!longest) return;
  $("chat-tokens").max = Math.max(1, longest - 1);
  $("chat-tokens").value = Math.min(Number($("chat-tokens").value), Math.max(16, longest >> 2));
  images.prepare(model);
  showExamples(model, (prompt) => {
    $("chat-text").value = prompt;
    send();
  });
  meter(0, 0);
  for (const turn of load(model.id)) add(turn);
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
  images.listen();
}

function clear() {
  under_way?.abort();
  turns.length = 0;
  forget();
  for (const node of [...$("transcript").children]) if (node.id !== "chat-empty") node.remove();
  $("chat-empty").hidden = false;
  meter(0, 0);
  $("chat-text").focus();
}

// -- a turn ------------------------------------------------------------------------------------------------------

async function send() {
  const content = $("chat-text").value.trim();
  if ((!content && !images.waiting()) || under_way || !model) return;
  $("chat-text").value = "";
  add({ role: "user", content, images: images.take() });
  const messages = turns.map(message);
  const answer = add({ role: "assistant", content: "" });
  answer.node.classList.add("pending");
  under_way = new AbortController();
  waiting(true);
  try {
    await receive(messages, answer, under_way.signal);
  } catch (error) {
    if (error.name === "AbortError") note(answer, "stopped");
    else fail(answer, error);
  }
  draw(answer);
  answer.node.classList.remove("pending");
  under_way = null;
  waiting(false);
  if (turns.length && !save(model.id, turns)) say($("context-said"), "This browser does not keep the conversation.");
}

function message({ role, content, images: some = [] }) {
  if (!some.length) return { role, content };
  const parts = some.map((url) => ({ type: "image_url", image_url: { url } }));
  return { role, content: content ? [...parts, { type: "text", text: content }] : parts };
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
    const { content = "", reasoning_content: thought = "" } = choice?.delta ?? {};
    if (content || thought) {
      first ??= performance.now();
      grow(answer, content ?? "", thought ?? "");
    }
  }
  if (usage) note(answer, cost(usage, began, first ?? began, dropped, reason));
  if (usage) meter(usage.prompt_tokens + usage.completion_tokens, dropped?.evicted_tokens ?? 0);
}

function cost(usage, began, first, dropped, reason) {
  const rate = (1000 * (usage.completion_tokens - 1)) / Math.max(1, performance.now() - first);
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const parts = [
    `${plural(usage.prompt_tokens, "prompt token")}, ${count(cached)} cached`,
    `${plural(usage.completion_tokens, "completion token")}`,
    `first token after ${count(first - began)} ms`,
  ];
  if (usage.completion_tokens > 1) parts.push(`${count(rate)} tokens/s`);
  if (dropped?.evicted_tokens) parts.push(`${count(dropped.evicted_tokens)} dropped`);
  if (reason === "length") parts.push("cut at max tokens");
  return parts.join(" · ");
}

// -- as it is shown ----------------------------------------------------------------------------------------------

function add({ role, content, thought = "", images: some = [], cost: said = "" }) {
  const body = el("div", { class: "said" });
  const name = el("span", { class: "unseen" }, role === "user" ? "You: " : "Model: ");
  const media = some.map((image, number) => images.shown(image, `Image ${number + 1} of the message`));
  const node = el("div", { class: `turn ${role}` }, name, ...media, body);
  const turn = { role, content, thought, images: some, node, body };
  turns.push(turn);
  $("chat-empty").hidden = true;
  $("transcript").append(node);
  draw(turn);
  if (said) note(turn, said);
  toEnd();
  return turn;
}

// What a person writes is text; what a model writes is Markdown.
function draw(turn) {
  turn.drawing = null;
  if (turn.role === "user") return say(turn.body, turn.content);
  const open = turn.body.querySelector("details")?.open ?? !turn.content;
  const thought = turn.thought ? [el("details", open ? { open: "" } : {}, el("summary", {}, "Reasoning"), el("p", {}, turn.thought))] : [];
  turn.body.replaceChildren(...thought, ...markdown(turn.content));
}

// However fast tokens come, an answer is drawn once a frame.
function grow(turn, more, thought) {
  turn.node.classList.remove("pending");
  turn.content += more;
  turn.thought += thought;
  turn.drawing ??= requestAnimationFrame(() => {
    draw(turn);
    toEnd();
  });
}

function note(turn, text) {
  turn.cost = text;
  turn.node.append(el("span", { class: "cost" }, text));
  toEnd();
}

// What failed is not part of the conversation; the message can be sent again.
function fail(turn, error) {
  turns.splice(turns.indexOf(turn), 1);
  turn.node.append(el("span", { class: "wrong", role: "alert" }, `Not answered: ${error.message}.`));
  if (turns.at(-1)?.role === "user") {
    const asked = turns.pop();
    $("chat-text").value ||= asked.content;
    images.restore(asked.images);
  }
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
