// The last minutes: tokens a second, the KV pool, and what happened when.

import { svg } from "./dom.js";
import { LANES, kindOf, mark } from "./marks.js";
import { clock, count } from "./words.js";

const SPANS = [60, 120, 300]; // seconds: the shortest that holds all samples
const POOL_SHARES = [0.1, 0.2, 0.5, 1];
const EVERY = { 60: [15, 30], 120: [30, 60], 300: [60, 60] }; // seconds between two marks of time: on a wide screen, and on a narrow one
const LEFT = 102, RIGHT = 8;
const HEIGHT = 326;
const RATE = { top: 10, height: 78 };
const QUEUE = { top: 106, height: 34 };
const POOL = { top: 158, height: 66 };
const LANE = { top: 234, height: 18 };
const AXIS = 320;
const MARK = 11;

// `samples` are objects by column name; `blocks` is the size of the KV pool. Returns how many minutes are shown.
export function drawTimeline(box, samples, events, blocks, now) {
  const width = Math.max(280, box.clientWidth);
  const age = now - (samples[0]?.time ?? now);
  const span = SPANS.find((one) => one >= age) ?? SPANS.at(-1);
  const x = (time) => LEFT + ((time - (now - span)) / span) * (width - LEFT - RIGHT);
  const shown = samples.filter((one) => one.time >= now - span);
  const recent = events.filter((one) => one.time >= now - span);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": words(shown, recent, blocks) });
  picture.append(
    ...rate(shown, x, width),
    ...queue(shown, x, width),
    ...pool(shown, x, width, blocks),
    ...lanes(recent, x, width),
    ...axis(x, now, span, width),
  );
  box.replaceChildren(picture);
  return span / 60;
}

function rate(shown, x, width) {
  const marks = ticks(Math.max(1, ...shown.map((one) => one.drawn_per_second)), 4);
  const y = (value) => RATE.top + RATE.height * (1 - value / marks.at(-1));
  return [
    ...band(RATE, width, "Tokens/s", marks.map(count)),
    area("rate-area", shown, x, (one) => y(one.drawn_per_second), y(0)),
    line("rate", shown, x, (one) => y(one.drawn_per_second)),
  ];
}

function queue(shown, x, width) {
  const marks = ticks(Math.max(4, ...shown.map((one) => one.waiting)), 2);
  const y = (value) => QUEUE.top + QUEUE.height * (1 - value / marks.at(-1));
  return [...band(QUEUE, width, "Waiting", marks.map(count)), area("queue", shown, x, (one) => y(one.waiting), y(0))];
}

function pool(shown, x, width, blocks) {
  const most = Math.max(0, ...shown.map((one) => one.blocks_held + one.blocks_cached)) / Math.max(1, blocks);
  const top = POOL_SHARES.find((share) => share >= most) ?? 1;
  const y = (value) => POOL.top + POOL.height * (1 - Math.min(1, value / Math.max(1, blocks * top)));
  return [
    ...band(POOL, width, "KV pool", [0, 50 * top, 100 * top].map((share) => `${share} %`)),
    area("cached", shown, x, (one) => y(one.blocks_held + one.blocks_cached), (one) => y(one.blocks_held)),
    area("used", shown, x, (one) => y(one.blocks_held), y(0)),
  ];
}

// With a line and a number at equal distances, from the bottom up.
function band({ top, height }, width, name, marks) {
  const lines = marks.flatMap((words, number) => {
    const y = top + height * (1 - number / (marks.length - 1));
    return [
      svg("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }),
      svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, words),
    ];
  });
  return [...lines, svg("text", { class: "name", x: 0, y: top + 4 }, name)];
}

function lanes(events, x, width) {
  return LANES.flatMap((name, number) => {
    const y = LANE.top + LANE.height * (number + 0.5);
    const marks = events.filter((one) => kindOf(one.kind).lane === name);
    return [
      svg("text", { x: 0, y: y + 4 }, name),
      svg("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }),
      ...apart(marks.map((one) => x(one.time))).map((at, i) => placed(marks[i], at, y)),
    ];
  });
}

// Marks of one moment stand beside each other, the newest in its place.
function apart(places) {
  for (let i = places.length - 2; i >= 0; i--) places[i] = Math.min(places[i], places[i + 1] - MARK);
  return places;
}

function placed(event, x, y) {
  const node = mark(event.kind, { transform: `translate(${x.toFixed(1)} ${y})` });
  node.append(svg("title", {}, `${clock(event.time)} ${event.text}`));
  return node;
}

function axis(x, now, span, width) {
  const every = EVERY[span][width < 520 ? 1 : 0];
  const found = [];
  for (let ago = span; ago >= 0; ago -= every) {
    const anchor = ago === 0 ? "end" : ago === span ? "start" : "middle";
    found.push(svg("text", { x: x(now - ago), y: AXIS, "text-anchor": anchor }, ago ? agoWords(ago) : "now"));
  }
  return found;
}

const agoWords = (seconds) => (seconds % 60 ? `−${seconds} s` : `−${seconds / 60} min`);

const points = (shown, x, y) => shown.map((one) => `${x(one.time).toFixed(1)} ${y(one).toFixed(1)}`);

function line(name, shown, x, y) {
  return svg("path", { class: name, d: shown.length ? `M${points(shown, x, y).join("L")}` : "" });
}

// Between a line and a lower one, or a height.
function area(name, shown, x, y, base) {
  if (!shown.length) return svg("path", { class: name });
  const lower = typeof base === "function" ? base : () => base;
  const back = points([...shown].reverse(), x, lower);
  return svg("path", { class: name, d: `M${points(shown, x, y).join("L")}L${back.join("L")}Z` });
}

// Round numbers from 0 to at least `most`, in at most so many steps of 1, 2, 5, 10, 20 …
export function ticks(most, steps) {
  const power = 10 ** Math.floor(Math.log10(most / steps));
  const step = Math.max(1, [1, 2, 5, 10].map((one) => one * power).find((one) => one * steps >= most));
  return Array.from({ length: Math.max(2, Math.ceil(most / step) + 1) }, (_, number) => number * step);
}

function words(shown, events, blocks) {
  if (!shown.length) return "Nothing has been measured yet";
  const last = shown.at(-1);
  const most = Math.max(...shown.map((one) => one.drawn_per_second));
  const held = Math.round((100 * last.blocks_held) / Math.max(1, blocks));
  return `Now ${count(last.drawn_per_second)} tokens a second, at most ${count(most)}; ${held} % of the KV pool used; ${events.length} events`;
}
