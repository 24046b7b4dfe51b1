// The first tab: the device, the engine on it, and what has happened.

import { drawBar, swatch } from "./bar.js";
import { $, el, say } from "./dom.js";
import { kindOf, markIcon } from "./marks.js";
import { drawTimeline } from "./timeline.js";
import { bytes, clock, count, milliseconds, partName, percent, plural, seconds } from "./words.js";

const KEPT_SAMPLES = 600, KEPT_EVENTS = 256, LISTED_EVENTS = 40;

let samples = [], events = [], last = null;

// What the next report need not repeat.
export const seen = () => last?.last_number ?? 0;

export function show(report) {
  if (last && report.began !== last.began) [samples, events] = [[], []]; // another server
  last = report;
  const { columns, rows } = report.samples;
  const named = rows.map((row) => Object.fromEntries(columns.map((name, i) => [name, row[i]])));
  samples = [...samples, ...named].slice(-KEPT_SAMPLES);
  const news = report.events.length > 0 || !$("events").children.length;
  events = [...events, ...report.events].slice(-KEPT_EVENTS);
  $("starting").hidden = true;
  $("live").hidden = false;
  redraw();
  if (news) listEvents();
}

// Also when the size of the window has changed.
export function redraw() {
  if (!last || !$("panel-memory").checkVisibility()) return;
  showCard(last);
  showReplicas(last);
  showTiles(last);
  const minutes = drawTimeline($("timeline"), samples, events, last.kv.blocks, last.time);
  say($("past-title"), minutes === 1 ? "The last minute" : `The last ${minutes} minutes`);
  showLedger(last);
  showRequests(last);
}

export function starting(phase) {
  $("starting").hidden = false;
  $("live").hidden = true;
  say($("phase"), phase);
}

function showCard({ card, device_name: name, fit }) {
  const free = card.parts.find((part) => part.name === "free")?.bytes ?? 0;
  say($("device"), `${name} · ${bytes(card.total_bytes)}`);
  say($("headroom"), `${bytes(free)} free${fit?.provable ? ", proven by the worst steps" : ""}`);
  drawBar($("card"), $("card-key"), card.parts, card.total_bytes);
}

// Where a server has several replicas: a bar for each, the one whose report this is among them.
function showReplicas({ replicas = [], replica }) {
  $("replicas").hidden = replicas.length < 2;
  if (replicas.length < 2) return;
  const there = [...$("replicas").children];
  const names = replicas.map((one) => one.name);
  if (there.map((node) => node.dataset.name).join() !== names.join())
    $("replicas").replaceChildren(
      ...names.map((name) =>
        el("div", { "data-name": name }, el("p", { class: "more" }), el("div", { class: "bar", role: "img" }), el("ul", { class: "key", hidden: "" })),
      ),
    );
  replicas.forEach((one, i) => {
    const [title, bar, key] = $("replicas").children[i].children;
    const here = one.name === replica ? ", shown above and below" : "";
    say(title, `${one.name} (${one.model}, ${one.status}${here}): ${count(one.running)} running, ${count(one.waiting)} waiting`);
    drawBar(bar, key, one.card.parts, one.card.total_bytes);
  });
}

function showTiles({ throughput, latency, requests, kv, gate, time, health, began }) {
  say($("rate"), count(throughput.drawn_tokens_per_second));
  say($("rate-more"), `${count(throughput.computed_tokens_per_second)} with prompt tokens`);
  showDelay("first", latency?.first_token);
  showDelay("between", latency?.between_tokens);
  say($("inside"), `${count(requests.running)} running`);
  say($("inside-more"), `${count(requests.waiting)} waiting; ${count(requests.inside)} of ${plural(requests.places, "queue slot")} used`);
  say($("kv"), percent(kv.blocks_held, kv.blocks));
  say($("kv-more"), `${percent(kv.blocks_cached, kv.blocks)} cached; ${count(kv.tokens)} tokens`);
  const holding = gate.state === "holding";
  $("gate").dataset.holds = holding;
  say($("gate"), holding ? "holding" : "open");
  say($("gate-more"), holding ? `for ${seconds(time - gate.since)}: ${gate.reason}` : "requests start at once");
  say(
    $("counters"),
    [
      `up ${seconds(time - began)}`,
      plural(health.rescues, "rescue"),
      plural(requests.preemptions, "preemption"),
      `${count(requests.refused)} refused`,
      `${count(kv.blocks_evicted)} blocks evicted`,
    ].join(" · "),
  );
}

// p50 and p99 of the last minute.
function showDelay(id, found) {
  const known = found && found.p50_ms !== null;
  say($(id), known ? milliseconds(found.p50_ms) : "–");
  say($(`${id}-more`), known ? `p99 ${milliseconds(found.p99_ms)}; last minute` : "no token in the last minute");
}

function listEvents() {
  const newest = events.slice(-LISTED_EVENTS).reverse();
  $("events").replaceChildren(
    ...(newest.length ? newest.map(eventLine) : [el("li", { class: "empty" }, "Nothing has happened yet.")]),
  );
}

const eventLine = (event) =>
  el(
    "li",
    {},
    el("time", { datetime: new Date(event.time * 1000).toISOString() }, clock(event.time)),
    markIcon(event.kind),
    el("span", {}, el("span", { class: "unseen" }, `${kindOf(event.kind).title}: `), event.text),
  );

function showLedger({ ledger }) {
  const size = (value) => (value === null ? "–" : bytes(value));
  const rows = ledger.filter((line) => line.measured_bytes || line.predicted_bytes);
  $("ledger").tBodies[0].replaceChildren(
    ...rows.map((line) =>
      el(
        "tr",
        { title: line.note || null },
        el("td", {}, swatch(line.name), partName(line.name)),
        el("td", {}, size(line.predicted_bytes)),
        el("td", {}, size(line.measured_bytes)),
        el("td", { class: "wide" }, error(line)),
        el("td", {}, size(line.used_bytes)),
      ),
    ),
  );
}

function error({ predicted_bytes: predicted, measured_bytes: measured }) {
  if (predicted === null || !measured) return "–";
  const share = 100 * (predicted / measured - 1);
  if (Math.abs(share) < 0.05) return "0 %";
  return `${share > 0 ? "+" : "−"}${Math.abs(share).toFixed(1)} %`;
}

function showRequests({ requests, kv }) {
  const { active, others, active_left_out: leftOut } = requests;
  const most = Math.max(1, ...active.map((one) => one.blocks));
  const rows = active.map((one) => requestLine(one, most));
  const empty = el("tr", {}, el("td", { class: "empty", colspan: 6 }, "No request is running."));
  $("requests").tBodies[0].replaceChildren(...(rows.length ? rows : [empty]));
  const notes = [];
  if (leftOut) notes.push(`${plural(leftOut, "more request")} of yours`);
  if (others.count) notes.push(`${plural(others.count, "request")} of other keys, with ${plural(others.blocks, "block")} of ${count(kv.blocks)}`);
  say($("others"), notes.join("; "));
}

function requestLine(one, most) {
  const fill = el("i");
  fill.style.width = `${(100 * one.blocks) / most}%`;
  const waits = one.state === "waiting";
  return el(
    "tr",
    { title: one.id },
    el("td", {}, el("code", {}, `${one.id.slice(0, 12)}${one.index ? `#${one.index}` : ""}`)),
    el("td", {}, count(one.prompt_tokens)),
    el("td", { class: "wide" }, count(one.cached_tokens)),
    el("td", {}, waits ? "waits" : `${count(one.drawn_tokens)} of ${count(one.max_tokens)}`),
    el("td", {}, count(one.blocks), el("span", { class: "fill", "aria-hidden": "true" }, fill)),
    el("td", {}, seconds(one.seconds)),
  );
}
