// Tabs, and a look at the server each second while somebody looks at the page.

import { get, health } from "./api.js";
import * as chat from "./chat.js";
import { $, say } from "./dom.js";
import * as memory from "./memory.js";
import * as planner from "./planner.js";
import { clock } from "./words.js";

const EVERY_MS = 1000;
const TABS = ["memory", "planner", "chat"];
const OPENED = { memory: memory.redraw, planner: planner.open, chat: chat.open };

// -- tabs ----------------------------------------------------------------------------------------

function choose(name, focus = false) {
  for (const one of TABS) {
    const tab = $(`tab-${one}`);
    const chosen = one === name;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
    $(`panel-${one}`).hidden = !chosen;
    if (chosen && focus) tab.focus();
  }
  if (fromAddress() !== name || !location.hash) history.replaceState(null, "", `#${name}`);
  Promise.resolve(OPENED[name]()).then(() => trouble(null), (error) => trouble(error.message));
}

// The fragment names the tab; what follows a question mark belongs to the tab.
const fromAddress = () => TABS.find((name) => location.hash.split("?")[0] === `#${name}`) ?? "memory";

function onKey(event) {
  const here = TABS.findIndex((name) => event.target.id === `tab-${name}`);
  const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: TABS.length - 1 }[event.key];
  if (here < 0 || to === undefined) return;
  event.preventDefault();
  choose(TABS[(to + TABS.length) % TABS.length], true);
}

// -- looking -------------------------------------------------------------------------------------

let timer = null, looking = false, missed = null;

async function look() {
  if (looking || document.hidden) return;
  looking = true;
  try {
    const state = await health();
    show(state);
    if (["ready", "degraded", "draining"].includes(state.status)) await report();
    else if (state.status === "starting") memory.starting(state.phase);
    if (missed) trouble((missed = null));
  } catch (error) {
    lost(error);
  }
  looking = false;
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(look, EVERY_MS);
}

async function report() {
  const found = await get(`/v1/memory?after=${memory.seen()}`);
  say($("model"), found.model);
  document.title = `${found.model} · Brim`;
  memory.show(found);
}

function show({ status, reason }) {
  $("state").dataset.state = status;
  $("state").title = reason ?? "";
  say($("state"), status);
}

function lost(error) {
  missed ??= Date.now() / 1000;
  show({ status: "gone" });
  trouble(`The server does not answer since ${clock(missed)} (${error.message}); trying again.`);
}

function trouble(text) {
  $("trouble").hidden = !text;
  say($("trouble"), text ?? "");
}

// ------------------------------------------------------------------------------------------------

for (const name of TABS) $(`tab-${name}`).addEventListener("click", () => choose(name));
document.querySelector("[role=tablist]").addEventListener("keydown", onKey);
window.addEventListener("hashchange", () => choose(fromAddress()));
window.addEventListener("resize", () => OPENED[fromAddress()] !== chat.open && (fromAddress() === "planner" ? planner.redraw() : memory.redraw()));
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : look()));
chat.prepare();
choose(fromAddress());
look();
