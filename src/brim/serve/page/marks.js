// Events: a name, a lane and a shape for each kind.

import { svg } from "./dom.js";

export const KINDS = {
  state: { title: "State", lane: "State", shape: "circle" },
  gate: { title: "Admission", lane: "Admission", shape: "square" },
  refused: { title: "Refused", lane: "Admission", shape: "cross" },
  preempted: { title: "Preempted", lane: "Evictions", shape: "diamond" },
  evicted: { title: "Evicted", lane: "Evictions", shape: "circle" },
  rolled: { title: "Truncated", lane: "Evictions", shape: "triangle" },
  rescue: { title: "Rescue", lane: "Rescues", shape: "star" },
  failed: { title: "Failed", lane: "Rescues", shape: "cross" },
};

export const LANES = ["State", "Admission", "Evictions", "Rescues"];

const PATHS = {
  square: "M-4-4H4V4H-4Z",
  circle: "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0Z",
  diamond: "M0-5.5L5.5 0L0 5.5L-5.5 0Z",
  triangle: "M0-5L5.2 4H-5.2Z",
  cross: "M-5-2.8L-2.8-5L0-2.2L2.8-5L5-2.8L2.2 0L5 2.8L2.8 5L0 2.2L-2.8 5L-5 2.8L-2.2 0Z",
  star: "M0-6.5L1.8-1.9L6.5-1.9L2.8 1.2L4.1 6L0 3.2L-4.1 6L-2.8 1.2L-6.5-1.9L-1.8-1.9Z",
};

const UNKNOWN = { title: "Event", lane: "State", shape: "circle" };

export const kindOf = (name) => KINDS[name] ?? UNKNOWN;

export const mark = (name, properties = {}) =>
  svg("path", { class: `mark-${name}`, d: PATHS[kindOf(name).shape], ...properties });

export const markIcon = (name) =>
  svg("svg", { class: `mark mark-${name}`, viewBox: "-7 -7 14 14", "aria-hidden": "true" }, mark(name));
