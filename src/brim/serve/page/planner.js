// The second tab: a plan that follows its controls at once.

import { get, post } from "./api.js";
import { drawBar, swatch } from "./bar.js";
import { $, el, say } from "./dom.js";
import * as form from "./planform.js";
import { bytes, count, partName, plural } from "./words.js";

let ready = false, last = null;
let asked = false, busy = false; // a plan is wanted; one is being made
let address = null; // that the form was filled from, or has written

export async function open() {
  if (!ready) {
    form.prepare(await get("/v1/catalogue"));
    $("plan-model").addEventListener("input", form.chooseModel); // before the form hears of it
    $("plan-search").addEventListener("input", searched);
    $("plan-form").addEventListener("input", follow);
    $("plan-form").addEventListener("submit", (event) => event.preventDefault());
    $("plan-copy").addEventListener("click", copy);
    ready = true;
  }
  if (address !== null && location.hash === address) return redraw();
  form.recall();
  follow();
}

// A search alone asks for nothing new, unless it leaves another model.
function searched(event) {
  event.stopPropagation();
  if (form.search($("plan-search").value)) follow();
}

function follow() {
  form.describe();
  form.remember();
  address = location.hash;
  asked = true;
  if (!busy) plan();
}

// One at a time, and always the newest wish.
async function plan() {
  busy = true;
  $("plan-result").setAttribute("aria-busy", "true");
  while (asked) {
    asked = false;
    try {
      last = await post("/v1/plan", form.wish());
      redraw();
    } catch (error) {
      refuse(error.message);
    }
  }
  busy = false;
  $("plan-result").setAttribute("aria-busy", "false");
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
  if (!plan.fits) return `Does not fit: ${bytes(plan.shortfall_bytes)} short`;
  return `Fits: ${plural(plan.concurrency, "concurrent request")} of ${count(plan.max_len)} tokens`;
}

function details(plan) {
  const replicas = plan.data_parallel > 1 ? `${count(plan.total_kv_tokens)} in all ${plan.data_parallel} replicas; ` : "";
  const host = plan.host ? `; host memory: ${bytes(plan.host.total_bytes)}` : "";
  const gpus = plan.device.count > 1 ? `each of ${plan.device.count} × ${plan.device.name}` : plan.device.name;
  const each = `a token takes ${bytes(plan.kv_bytes_per_token)}, a request ${bytes(plan.request_bytes)}`;
  const pool = plan.fits ? `${count(plan.kv_tokens)} tokens of ${plan.kv_dtype} KV; ` : "";
  return `${gpus}: ${pool}${replicas}${each}; steps of ${count(plan.batch_tokens)} tokens; limited by ${plan.limited_by}${host}`;
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

// Every row of advice is a change of the form: of one setting, or of two together.
function changes(one, plan) {
  const knobs = one.knob.split(" + "), values = one.to.split(" + ");
  return knobs.map((knob, index) => (knob === "tp" ? ["gpus", gpus(values[index], plan)] : [knob, values[index]]));
}

// The form has GPUs in all. llama.cpp has a stage on each of them, whatever is asked for.
const gpus = (tp, plan) => Number(tp) * plan.data_parallel * (plan.engine === "llama.cpp" ? 1 : plan.pipeline_parallel);

const knobName = (knob) =>
  knob.replaceAll("_", " ").replace("tp", "GPUs").replace("kv dtype", "KV cache dtype").replace("cpu moe", "CPU MoE layers").replace(/^gpu\b/, "GPU");

function advice(plan) {
  if (!plan.advice.length) return [el("li", {}, "No setting would gain anything.")];
  return plan.advice.map((one) => {
    const gain = one.fits_after ? `${count(one.kv_tokens_after)} tokens of KV` : "still too large";
    const apply = () => {
      for (const [field, value] of changes(one, plan)) form.set(field, value);
      follow();
    };
    return el(
      "li",
      {},
      el("span", {}, `${knobName(one.knob)}: ${number(one.from)} → ${number(one.to)}`),
      el("span", { class: "quiet gain" }, `frees ${bytes(one.frees_bytes)}; ${gain}`),
      el("button", { type: "button", class: "small", onclick: apply, "aria-label": `Try ${knobName(one.knob)} ${one.to}` }, "Try"),
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
