// Numbers and names as people read them.

const KIB = 1024, MIB = KIB ** 2, GIB = KIB ** 3;

export function bytes(size) {
  const magnitude = Math.abs(size);
  if (magnitude < KIB) return `${size} B`;
  if (magnitude < MIB) return `${(size / KIB).toFixed(1)} KiB`;
  if (magnitude < GIB) return `${(size / MIB).toFixed(1)} MiB`;
  return `${(size / GIB).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })} GiB`;
}

export const count = (number) => Math.round(number).toLocaleString("en");

export const percent = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "0 %");

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

export function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 100) return `${Math.round(value)} s`;
  const minutes = Math.round(value / 60);
  return minutes < 100 ? `${minutes} min` : `${Math.round(minutes / 60)} h`;
}

export function milliseconds(value) {
  if (value < 10) return `${value.toFixed(1)} ms`;
  return value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(value < 9950 ? 1 : 0)} s`;
}

export const clock = (unix) =>
  new Date(unix * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

const PARTS = {
  context: "Context",
  weights: "Weights",
  draft: "Draft model",
  encoder: "Image encoder",
  activation: "Activations",
  workspace: "Workspace",
  graphs: "CUDA graphs",
  state: "Recurrent state",
  neighbours: "Other processes",
  leases: "Leases",
  canary: "Canary",
  keep_free: "Kept free",
  kv: "KV pool",
  kv_used: "KV used",
  kv_cached: "KV cached",
  kv_free: "KV free",
  free: "Free",
  missing: "Shortfall",
};

export const partName = (name) => PARTS[name] ?? name;
