// The second tab: a plan that follows its controls at once.

import { get, post } from "./api.js";
import { drawBar, swatch } from "./bar.js";
import { $, el, options, say } from "./dom.js";
import { bytes, count, partName, plural } from "./words.js";

const SHORTEST_CONTEXT = 1024;
const IMAGE_SIDES = [224, 336, 448, 672, 896, 1024, 1280, 1536, 2048, 3072, 4096];
const GPU_COUNTS = [1, 2, 4, 8];

let catalogue = null, contexts = [], last = null;
let asked = false, busy = false; // a plan is wanted; one is being made

export async function open() {
  if (catalogue) return redraw();
  catalogue = await get("/v1/catalogue");
  options($("plan-model"), catalogue.models.map((one) => [one.name, `${one.name} · ${size(one.parameters)}`]), "llama-3.1-8b");
  options($("plan-gpu"), catalogue.gpus.map((one) => [one.key, `${one.name} · ${Math.round(one.total_bytes / 2 ** 30)} GiB`]), "rtx-4090");
  options($("plan-gpus"), GPU_COUNTS.map((number) => [number, `${number} ×`]));
  options($("plan-kv"), catalogue.kv_dtypes.map((name) => [name, name === "auto" ? "as the model" : name]));
  options($("plan-weights"), [["", "as published"], ...catalogue.weights.map((name) => [name, name])]);
  options($("plan-engine"), [["", "none"], ...catalogue.engines.map((name) => [name, name])], "vllm");
  $("plan-image").max = IMAGE_SIDES.length;
  chooseModel();
  $("plan-model").addEventListener("change", chooseModel);
  $("plan-form").addEventListener("input", follow);
  $("plan-form").addEventListener("submit", (event) => event.preventDefault());
  $("plan-copy").addEventListener("click", copy);
  follow();
}

const size = (parameters) =>
  parameters >= 1e12 ? `${(parameters / 1e12).toFixed(1)} T` : parameters >= 1e9 ? `${(parameters / 1e9).toFixed(1)} B` : `${Math.round(parameters / 1e6)} M`;

const model = () => catalogue.models.find((one) => one.name === $("plan-model").value);

// A model has contexts of its own, and images or none.
function chooseModel() {
  const { max_positions: most, images } = model();
  contexts = [];
  for (let length = SHORTEST_CONTEXT; length < most; length *= 2) contexts.push(length);
  contexts.push(most);
  const slider = $("plan-context");
  slider.max = contexts.length;
  if (!images) $("plan-image").value = 0;
  $("plan-image-row").hidden = !images;
}

// Each slider is open at its left end: the planner solves for it.
function chosen() {
  const at = (id) => Number($(id).value);
  const side = IMAGE_SIDES[at("plan-image") - 1];
  return {
    context: contexts[at("plan-context") - 1] ?? null,
    concurrency: at("plan-concurrency") ? 2 ** (at("plan-concurrency") - 1) : null,
    pixels: side ? side * side : null,
    side,
  };
}

function follow() {
  const { context, concurrency, side } = chosen();
  put("plan-context", context ? `${count(context)} tokens` : "as long as fits");
  put("plan-concurrency", concurrency ? count(concurrency) : "as many as fit");
  put("plan-image", side ? `${side} × ${side}` : "the largest allowed");
  asked = true;
  if (!busy) plan();
}

function put(id, text) {
  say($(`${id}-said`), text);
  $(id).setAttribute("aria-valuetext", text);
}

// One at a time, and always the newest wish.
async function plan() {
  busy = true;
  $("plan-result").setAttribute("aria-busy", "true");
  while (asked) {
    asked = false;
    try {
      last = await post("/v1/plan", wish());
      redraw();
    } catch (error) {
      refuse(error.message);
    }
  }
  busy = false;
  $("plan-result").setAttribute("aria-busy", "false");
}

function wish() {
  const { context, concurrency, pixels } = chosen();
  const found = {
    model: $("plan-model").value,
    gpu: $("plan-gpu").value,
    gpus: Number($("plan-gpus").value),
    max_len: context,
    concurrency,
    image_pixels: pixels,
    kv_dtype: $("plan-kv").value,
    weights: $("plan-weights").value || null,
    engine: $("plan-engine").value || null,
  };
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value !== null));
}

function refuse(message) {
  last = null;
  $("plan-answer").dataset.fits = "false";
  say($("plan-answer"), "No plan");
  say($("plan-more"), message);
  for (const id of ["plan-bar", "plan-key", "plan-advice", "plan-warnings"]) $(id).replaceChildren();
  $("plan-ledger").tBodies[0].replaceChildren();
  $("plan-command-panel").hidden = true;
}

function redraw() {
  if (!last) return;
  const plan = last;
  $("plan-answer").dataset.fits = plan.fits;
  say($("plan-answer"), headline(plan));
  say($("plan-more"), details(plan));
  drawBar($("plan-bar"), $("plan-key"), parts(plan), plan.device.total_bytes, plan.shortfall_bytes);
  $("plan-command-panel").hidden = !plan.shell;
  say($("plan-command"), plan.shell ?? "");
  $("plan-advice").replaceChildren(...advice(plan));
  $("plan-warnings").replaceChildren(...plan.warnings.map((text) => el("li", {}, text)));
  $("plan-ledger").tBodies[0].replaceChildren(...plan.items.filter((item) => item.bytes > 0).map(ledgerLine));
}

function headline(plan) {
  if (!plan.fits) return `Does not fit: ${bytes(plan.shortfall_bytes)} missing`;
  return `Fits: ${plural(plan.concurrency, "request")} of ${count(plan.max_len)} tokens at once`;
}

function details(plan) {
  const gpus = plan.device.count > 1 ? `each of ${plan.device.count} × ${plan.device.name}` : plan.device.name;
  const each = `a token takes ${bytes(plan.kv_bytes_per_token)}, a request ${bytes(plan.request_bytes)}`;
  const pool = plan.fits ? `${count(plan.kv_tokens)} tokens of ${plan.kv_dtype} KV; ` : "";
  return `${gpus}: ${pool}${each}; steps of ${count(plan.batch_tokens)} tokens; limited by ${plan.limited_by}`;
}

// What is missing is drawn behind the end of the device, so the parts before it fill the device alone.
function parts(plan) {
  const found = plan.items.map(({ name, bytes: held }) => ({ name, bytes: held }));
  if (!plan.shortfall_bytes) return withFree(found, plan.device.total_bytes);
  let left = plan.device.total_bytes;
  return found.map((part) => {
    const inside = Math.max(0, Math.min(left, part.bytes));
    left -= inside;
    return { ...part, bytes: inside };
  });
}

function withFree(found, total) {
  const free = total - found.reduce((sum, part) => sum + Math.max(0, part.bytes), 0);
  return free > total / 2000 ? [...found, { name: "free", bytes: free }] : found;
}

// A setting that this form has is changed by a button.
const KNOBS = {
  kv_dtype: (value) => choose("plan-kv", value),
  weights: (value) => choose("plan-weights", value),
  gpu: (value) => choose("plan-gpu", value),
  tp: (value) => choose("plan-gpus", value),
  max_len: (value) => slide("plan-context", contexts.findLastIndex((one) => one <= Number(value)) + 1),
  concurrency: (value) => slide("plan-concurrency", Math.floor(Math.log2(Number(value))) + 1),
  image_pixels: (value) => slide("plan-image", IMAGE_SIDES.findLastIndex((one) => one * one <= Number(value)) + 1),
};

function choose(id, value) {
  if (![...$(id).options].some((option) => option.value === value)) return false;
  $(id).value = value;
  return true;
}

function slide(id, value) {
  if (!(value > 0)) return false;
  $(id).value = value;
  return true;
}

const knobName = (knob) => knob.replaceAll("_", " ").replace("tp", "GPUs").replace("kv dtype", "KV type").replace("gpu", "GPU");

function advice(plan) {
  if (!plan.advice.length) return [el("li", {}, "No setting would gain anything.")];
  return plan.advice.map((one) => {
    const gain = one.fits_after ? `${count(one.kv_tokens_after)} tokens of KV` : "still too large";
    const apply = () => KNOBS[one.knob]?.(one.to) && follow();
    return el(
      "li",
      {},
      el("span", {}, `${knobName(one.knob)}: ${number(one.from)} → ${number(one.to)}`),
      el("span", { class: "quiet gain" }, `frees ${bytes(one.frees_bytes)}; ${gain}`),
      one.knob in KNOBS
        ? el("button", { type: "button", class: "small", onclick: apply, "aria-label": `Try ${knobName(one.knob)} ${one.to}` }, "Try")
        : el("span"),
    );
  });
}

const number = (text) => (/^\d+$/.test(text) ? count(Number(text)) : text);

const ledgerLine = (item) =>
  el(
    "tr",
    {},
    el("td", {}, swatch(item.name), partName(item.name)),
    el("td", {}, bytes(item.bytes)),
    el("td", {}, item.source),
    el("td", {}, item.detail),
  );

async function copy() {
  await navigator.clipboard.writeText($("plan-command").textContent);
  say($("plan-copy"), "Copied");
  setTimeout(() => say($("plan-copy"), "Copy"), 1500);
}

export { redraw };
