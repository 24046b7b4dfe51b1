// A device's memory as one stacked bar, with a key below it.

import { el } from "./dom.js";
import { bytes, partName, percent } from "./words.js";

const LABELLED_PIXELS = 62; // a segment of fewer has its label in the key alone

// `parts` are {name, bytes}; where they are more than `total`, a line marks the end of the device.
export function drawBar(bar, key, parts, total, missing = 0) {
  const shown = parts.filter((part) => part.bytes > 0);
  const whole = Math.max(total, shown.reduce((sum, part) => sum + part.bytes, 0)) + missing;
  const pixels = bar.clientWidth || 600;
  const segments = shown.map((part) => segment(part, (part.bytes / whole) * pixels, part.bytes / whole, bar));
  if (missing) {
    segments.push(el("i", { class: "end" }));
    segments.push(segment({ name: "missing", bytes: missing }, (missing / whole) * pixels, missing / whole, bar));
  }
  if (!sameChildren(bar, segments)) bar.replaceChildren(...segments);
  const listed = missing ? [...shown, { name: "missing", bytes: missing }] : shown;
  bar.setAttribute("aria-label", `Memory, ${bytes(total)}: ${listed.map((part) => words(part, total)).join(", ")}`);
  key.replaceChildren(...listed.map((part) => entry(part, total)));
}

// Segments that are there already only change their width, so that they move.
function sameChildren(bar, segments) {
  const there = [...bar.children];
  if (there.length !== segments.length || there.some((node, i) => node.dataset.name !== segments[i].dataset.name))
    return false;
  there.forEach((node, i) => {
    node.style.width = segments[i].style.width;
    node.className = segments[i].className;
    node.title = segments[i].title;
    node.replaceChildren(...segments[i].childNodes);
  });
  return true;
}

function segment(part, pixels, share) {
  const wide = pixels >= LABELLED_PIXELS;
  const label = wide ? [el("b", {}, partName(part.name)), el("span", {}, bytes(part.bytes))] : [];
  const node = el("div", { class: `part part-${part.name}${wide ? "" : " narrow"}`, "data-name": part.name }, ...label);
  node.style.width = `calc(${(100 * share).toFixed(4)}% - 2px)`;
  node.title = `${partName(part.name)}: ${bytes(part.bytes)}`;
  return node;
}

const words = (part, total) => `${partName(part.name)} ${bytes(part.bytes)} (${percent(part.bytes, total)})`;

function entry(part) {
  return el("li", {}, swatch(part.name), el("span", {}, partName(part.name)), el("b", {}, bytes(part.bytes)));
}

export const swatch = (name) => el("i", { class: `swatch part part-${name}`, "aria-hidden": "true" });
