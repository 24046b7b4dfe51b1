// A conversation that survives a reload: kept in this browser, bounded, and forgotten when it is cleared.

const NAME = "brim-chat";
const MOST_TURNS = 100;
const MOST_CHARACTERS = 2_000_000; // browsers keep some five million
const ROLES = new Set(["user", "assistant"]);

// Of a model: the conversation of another one is not shown.
export function load(model) {
  let found = null;
  try {
    found = JSON.parse(localStorage.getItem(NAME) ?? "null");
  } catch {
    return []; // not as this page writes it, or the browser keeps nothing
  }
  if (found?.model !== model || !Array.isArray(found.turns)) return [];
  return found.turns.filter(isTurn).slice(-MOST_TURNS);
}

const isTurn = (one) =>
  ROLES.has(one?.role) &&
  typeof one.content === "string" &&
  typeof (one.thought ?? "") === "string" &&
  typeof (one.cost ?? "") === "string" &&
  Array.isArray(one.images ?? []) &&
  (one.images ?? []).every((image) => typeof image === "string" && image.startsWith("data:image/"));

// Returns whether it is kept. What is too much is left out, the oldest first: its images, then whole turns.
export function save(model, turns) {
  let kept = turns.slice(-MOST_TURNS).map(({ role, content, thought, images, cost }) => ({ role, content, thought, images, cost }));
  for (const turn of kept) {
    if (size(kept) <= MOST_CHARACTERS) break;
    turn.images = [];
  }
  while (kept.length && size(kept) > MOST_CHARACTERS) kept = kept.slice(1);
  try {
    localStorage.setItem(NAME, JSON.stringify({ model, turns: kept }));
  } catch {
    return false;
  }
  return true;
}

export function forget() {
  try {
    localStorage.removeItem(NAME);
  } catch {
    // a browser that keeps nothing has nothing to forget
  }
}

const size = (turns) =>
  turns.reduce((sum, one) => sum + one.content.length + (one.thought ?? "").length + (one.images ?? []).join("").length, 0);
