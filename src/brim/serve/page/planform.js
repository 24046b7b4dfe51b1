// The planner's form: what is asked as controls, as a request, and as an address that a link can have.

import { $, options, say } from "./dom.js";
import { count } from "./words.js";

const SHORTEST_CONTEXT = 1024;
const IMAGE_SIDES = [224, 336, 448, 672, 896, 1024, 1280, 1536, 2048, 3072, 4096];
const POWERS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
const STEPS = [512, 1024, 2048, 4096, 8192, 16384];
const DEFAULTS = { model: "llama-3.1-8b", gpu: "rtx-4090", gpus: "1", engine: "vllm" };

// Fields of a request and their controls. Those of NUMBERS are sent as numbers; an empty choice is not sent.
const SELECTS = {
  model: "plan-model",
  gpu: "plan-gpu",
  gpus: "plan-gpus",
  engine: "plan-engine",
  kv_dtype: "plan-kv",
  weights: "plan-weights",
  batch_tokens: "plan-step",
  graphs: "plan-graphs",
  pp: "plan-pp",
  dp: "plan-dp",
  ep: "plan-ep",
  gpu_layers: "plan-gpu-layers",
  cpu_moe: "plan-cpu-moe",
};
const SLIDERS = { max_len: "plan-context", concurrency: "plan-concurrency", image_pixels: "plan-image" };
const NUMBERS = new Set(["gpus", "batch_tokens", "pp", "dp", "gpu_layers", "cpu_moe"]);
const FURTHER = ["batch_tokens", "graphs", "pp", "dp", "ep", "gpu_layers", "cpu_moe"];

let catalogue = null;
const stops = { max_len: [], concurrency: POWERS, image_pixels: IMAGE_SIDES.map((side) => side * side) };

export function prepare(found) {
  catalogue = found;
  listModels(catalogue.models, DEFAULTS.model);
  options($("plan-gpu"), catalogue.gpus.map((one) => [one.key, `${one.name} · ${Math.round(one.total_bytes / 2 ** 30)} GiB`]), DEFAULTS.gpu);
  options($("plan-gpus"), POWERS.filter((number) => number <= 16).map((number) => [number, `${number} ×`]));
  options($("plan-kv"), catalogue.kv_dtypes.map((name) => [name, name === "auto" ? "as the model" : name]));
  options($("plan-weights"), [["", "as published"], ...catalogue.weights.map((name) => [name, name])]);
  options($("plan-engine"), [["", "none"], ...catalogue.engines.map((name) => [name, name])], DEFAULTS.engine);
  options($("plan-step"), [["", "as fits"], ...STEPS.map((number) => [number, count(number)])]);
  options($("plan-graphs"), [["", "if they fit"], ["on", "on"], ["off", "off"]]);
  options($("plan-pp"), POWERS.slice(0, 5).map((number) => [number === 1 ? "" : number, number]));
  options($("plan-dp"), POWERS.slice(0, 5).map((number) => [number === 1 ? "" : number, number]));
  options($("plan-ep"), [["", "cut by every rank"], ["true", "whole, on the ranks of all replicas"]]);
  chooseModel();
}

// -- models ------------------------------------------------------------------------------------------------------

const model = () => catalogue.models.find((one) => one.name === $("plan-model").value);

const size = (parameters) =>
  parameters >= 1e12 ? `${(parameters / 1e12).toFixed(1)} T` : parameters >= 1e9 ? `${(parameters / 1e9).toFixed(1)} B` : `${Math.round(parameters / 1e6)} M`;

function listModels(models, chosen) {
  options($("plan-model"), models.map((one) => [one.name, `${one.name} · ${size(one.parameters)}`]), chosen);
}

// Every word must be in the name, the hub id or the family. The model that is chosen stays where it matches.
export function search(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const all = catalogue.models.map((one) => [one, `${one.name} ${one.hub_id} ${one.family}`.toLowerCase()]);
  const found = all.filter(([, names]) => words.every((word) => names.includes(word))).map(([one]) => one);
  const now = model();
  say($("plan-search-said"), words.length ? `${count(found.length)} of ${count(all.length)}` : "");
  if (!found.length) return false;
  listModels(found, found.includes(now) ? now.name : found[0].name);
  if (found.includes(now)) return false;
  chooseModel();
  return true;
}

// A model has contexts and layers of its own, and images and experts or none.
export function chooseModel() {
  const { max_positions: most, images, layers, experts } = model();
  const context = values().max_len;
  stops.max_len = [];
  for (let length = SHORTEST_CONTEXT; length < most; length *= 2) stops.max_len.push(length);
  stops.max_len.push(most);
  slide("max_len", context ? Math.min(context, most) : 0);
  slide("concurrency", values().concurrency ?? 0);
  slide("image_pixels", images ? values().image_pixels ?? 0 : 0);
  const numbers = (from, to) => Array.from({ length: to - from + 1 }, (_, index) => [from + index, from + index]);
  refill("gpu_layers", [["", "all"], ...numbers(1, layers).reverse()]);
  refill("cpu_moe", [["", "no layer"], ...numbers(1, layers).map(([value]) => [value, `${value} layers`])]);
  if (!experts) $("plan-ep").value = $("plan-cpu-moe").value = "";
  $("plan-image-row").hidden = !images;
  $("plan-ep-row").hidden = $("plan-moe-row").hidden = !experts;
}

function refill(field, pairs) {
  const now = $(SELECTS[field]).value;
  options($(SELECTS[field]), pairs);
  if (!choose(field, now)) $(SELECTS[field]).value = "";
}

// -- values ------------------------------------------------------------------------------------------------------

// Each slider is open at its left end: the planner solves for it.
export function values() {
  const at = (field) => stops[field][Number($(SLIDERS[field]).value) - 1] ?? null;
  return Object.fromEntries(Object.keys(SLIDERS).map((field) => [field, at(field)]));
}

// What was turned away is left out: layers on the GPU are a matter of llama.cpp.
export function wish() {
  const found = Object.fromEntries(Object.entries(SELECTS).map(([field, id]) => [field, $(id).value]));
  for (const field of NUMBERS) if (found[field]) found[field] = Number(found[field]);
  if (found.ep) found.ep = true;
  if (found.engine !== "llama.cpp") found.gpu_layers = found.cpu_moe = "";
  const given = { ...found, ...values() };
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== null && value !== ""));
}

export function describe() {
  const { max_len: context, concurrency, image_pixels: pixels } = values();
  const side = pixels && Math.sqrt(pixels);
  put("plan-context", context ? `${count(context)} tokens` : "as long as fits");
  put("plan-concurrency", concurrency ? count(concurrency) : "as many as fit");
  put("plan-image", !pixels ? "the largest allowed" : Number.isInteger(side) ? `${side} × ${side}` : `${count(pixels)} pixels`);
  $("plan-host-row").hidden = $("plan-engine").value !== "llama.cpp";
}

function put(id, text) {
  say($(`${id}-said`), text);
  $(id).setAttribute("aria-valuetext", text);
}

// A value that a control does not offer yet is added, where it is a number: advice and links are exact.
export function set(field, value) {
  if (field in SLIDERS) return slide(field, Number(value));
  if (!(field in SELECTS)) return false;
  const done = choose(field, String(value)) || (NUMBERS.has(field) && add(field, Number(value)));
  if (done && field === "model") chooseModel();
  if (done && FURTHER.includes(field) && $(SELECTS[field]).value) $("plan-settings").open = true;
  return done;
}

function choose(field, value) {
  const select = $(SELECTS[field]);
  const wanted = value === "1" && ["pp", "dp"].includes(field) ? "" : value;
  if (![...select.options].some((option) => option.value === wanted)) return false;
  select.value = wanted;
  return true;
}

function add(field, value) {
  if (!Number.isInteger(value) || value < 1 || ["gpu_layers", "cpu_moe"].includes(field)) return false;
  const select = $(SELECTS[field]);
  select.append(new Option(field === "gpus" ? `${value} ×` : count(value), value));
  select.value = value;
  return true;
}

function slide(field, value) {
  if (!Number.isInteger(value) || value < 0) return false;
  if (value && !stops[field].includes(value)) stops[field] = [...stops[field], value].sort((one, other) => one - other);
  $(SLIDERS[field]).max = stops[field].length;
  $(SLIDERS[field]).value = stops[field].indexOf(value) + 1;
  return true;
}

// -- address -----------------------------------------------------------------------------------------------------

export function remember() {
  const address = `#planner?${new URLSearchParams(wish())}`;
  if (location.hash !== address) history.replaceState(null, "", address);
}

// The form as the address says; what it says that is not known here is named.
export function recall() {
  const said = new URLSearchParams(location.hash.split("?")[1] ?? "");
  if (![...said.keys()].length) return;
  $("plan-search").value = "";
  listModels(catalogue.models, model().name);
  for (const [field, id] of Object.entries(SELECTS)) $(id).value = DEFAULTS[field] ?? $(id).options[0].value;
  chooseModel();
  for (const field of Object.keys(SLIDERS)) slide(field, 0);
  if (!said.has("engine")) $("plan-engine").value = "";
  const first = (one) => (one[0] === "model" ? 0 : 1);
  const fields = [...said].sort((one, other) => first(one) - first(other));
  const unknown = fields.filter(([field, value]) => !set(field, value)).map(([field, value]) => `${field} ${value}`);
  $("plan-unknown").hidden = !unknown.length;
  say($("plan-unknown"), unknown.length ? `The link asks for what is not known here: ${unknown.join(", ")}` : "");
}
