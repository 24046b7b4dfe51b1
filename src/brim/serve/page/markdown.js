// Markdown as elements: what models write (headings, lists, code, tables, emphasis), never as markup.
//
// In: a text, whole or as far as it has come. Out: nodes made of `el`. HTML in it is text, images are their words, and
// links are not followed: their address is shown beside them. Every search is by `indexOf` or a pattern without choices,
// so that no text takes long.

import { el } from "./dom.js";

const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+#.-]{0,30})/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const TABLE_RULE = /^ *\|?[ :|-]*-[ :|-]*\|?$/;
const DEEPEST = 4; // emphasis in emphasis, lists in lists
const LONGEST_ADDRESS = 2000;
const MARKS = [["**", "strong"], ["__", "strong"], ["~~", "s"], ["*", "em"], ["_", "em"]];

export function markdown(text) {
  return blocks(text.replaceAll("\r\n", "\n").split("\n"), 0);
}

// -- blocks ------------------------------------------------------------------------------------------------------

function blocks(lines, depth) {
  const found = [];
  for (let at = 0; at < lines.length; ) {
    const [node, next] = block(lines, at, depth);
    if (node) found.push(node);
    at = next;
  }
  return found;
}

function block(lines, at, depth) {
  const line = lines[at];
  if (!line.trim()) return [null, at + 1];
  const fence = FENCE.exec(line);
  if (fence) return code(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [el(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2].replace(/ #+ *$/, ""), 0)), at + 1];
  if (RULE.test(line)) return [el("hr"), at + 1];
  if (QUOTE.test(line) && depth < DEEPEST) return quote(lines, at, depth);
  if (ITEM.test(line) && depth < DEEPEST) return list(lines, at, depth);
  if (line.includes("|") && at + 1 < lines.length && TABLE_RULE.test(lines[at + 1])) return table(lines, at);
  return paragraph(lines, at, depth);
}

function code(lines, at, [, mark, language]) {
  let end = at + 1;
  while (end < lines.length && !(lines[end].trim().startsWith(mark) && !lines[end].trim().slice(mark.length).trim())) end++;
  const text = lines.slice(at + 1, end).join("\n");
  const label = language ? `Code, ${language}` : "Code";
  return [el("pre", { tabindex: 0, role: "region", "aria-label": label }, el("code", {}, text)), end + 1];
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end++;
  return [el("blockquote", {}, ...blocks(lines.slice(at, end).map((line) => line.replace(QUOTE, "")), depth + 1)), end];
}

// An item goes on with lines that are indented more than its mark; one with another kind of mark begins another list.
function list(lines, at, depth) {
  const [, indent, mark] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(mark);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (item && item[1].length <= indent.length + 1 && /\d/.test(item[2]) === ordered && item[1].length >= indent.length) {
      items.push([item[3]]);
    } else if (items.length && (lines[end].startsWith(`${indent}  `) || (!lines[end].trim() && continues(lines, end, indent)))) {
      items.at(-1).push(lines[end].slice(indent.length + 2));
    } else break;
    end++;
  }
  const start = ordered && parseInt(mark, 10) !== 1 ? { start: parseInt(mark, 10) } : {};
  return [el(ordered ? "ol" : "ul", start, ...items.map((item) => el("li", {}, ...loose(blocks(item, depth + 1))))), end];
}

// Whether a list goes on behind an empty line.
function continues(lines, at, indent) {
  const next = lines[at + 1] ?? "";
  return next.startsWith(`${indent}  `) || (ITEM.exec(next)?.[1].length ?? -1) === indent.length;
}

// An item of one paragraph is a line, not a paragraph.
const loose = (nodes) => (nodes[0]?.tagName === "P" ? [...nodes[0].childNodes, ...nodes.slice(1)] : nodes);

function table(lines, at) {
  const cells = (line) => line.trim().replace(/^\|/, "").replace(/\|$/, "").split("|").map((cell) => cell.trim());
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end++;
  const head = cells(lines[at]);
  const row = (line) => el("tr", {}, ...head.map((_, i) => el("td", {}, ...inline(cells(line)[i] ?? "", 0))));
  const body = el("tbody", {}, ...lines.slice(at + 2, end).map(row));
  const top = el("thead", {}, el("tr", {}, ...head.map((cell) => el("th", { scope: "col" }, ...inline(cell, 0)))));
  return [el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table" }, el("table", {}, top, body)), end];
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !starts(lines, end, depth)) end++;
  const said = lines.slice(at, end).map((line) => line.trimEnd());
  const parts = said.flatMap((line, i) => [...(i ? [el("br")] : []), ...inline(line.trim(), 0)]);
  return [el("p", {}, ...parts), end];
}

const starts = (lines, at, depth) =>
  FENCE.test(lines[at]) || HEADING.test(lines[at]) || RULE.test(lines[at]) || (depth < DEEPEST && (QUOTE.test(lines[at]) || ITEM.test(lines[at])));

// -- in a line ---------------------------------------------------------------------------------------------------

function inline(text, depth) {
  const found = [];
  let plain = "";
  const flush = () => {
    if (plain) found.push(plain);
    plain = "";
  };
  for (let at = 0; at < text.length; ) {
    const [node, next] = special(text, at, depth);
    if (node === null) plain += text.slice(at, next);
    else {
      flush();
      found.push(node);
    }
    at = next;
  }
  flush();
  return found;
}

// What begins here, and where the text goes on; null: plain text.
function special(text, at, depth) {
  const one = text[at];
  if (one === "\\" && /[\\`*_{}[\]()#+.!|~>-]/.test(text[at + 1] ?? "")) return [text[at + 1], at + 2];
  if (one === "`") return codeSpan(text, at);
  if (one === "[" || (one === "!" && text[at + 1] === "[")) return link(text, at, depth);
  for (const [mark, name] of depth < DEEPEST ? MARKS : []) {
    if (!text.startsWith(mark, at)) continue;
    const end = closing(text, at, mark);
    if (end > 0) return [el(name, {}, ...inline(text.slice(at + mark.length, end), depth + 1)), end + mark.length];
    return [null, at + mark.length];
  }
  return [null, at + 1];
}

function codeSpan(text, at) {
  let ticks = 1;
  while (text[at + ticks] === "`") ticks++;
  const end = text.indexOf("`".repeat(ticks), at + ticks);
  if (end < 0) return [null, at + ticks];
  return [el("code", {}, text.slice(at + ticks, end).trim()), end + ticks];
}

// Where emphasis ends: behind a character that is no space, and an underscore not inside of a word.
function closing(text, at, mark) {
  const from = at + mark.length;
  if (!text[from] || /\s/.test(text[from])) return -1;
  if (mark[0] === "_" && /\w/.test(text[at - 1] ?? "")) return -1;
  for (let end = text.indexOf(mark, from + 1), tries = 0; end > 0 && tries < 8; end = text.indexOf(mark, end + 1), tries++) {
    const after = text[end + mark.length] ?? "";
    if (!/\s/.test(text[end - 1]) && (mark.length > 1 || after !== mark) && !(mark[0] === "_" && /\w/.test(after))) return end;
  }
  return -1;
}

// The bracket that closes an address, which may have brackets of its own.
function closed(text, from) {
  const most = Math.min(text.length, from + LONGEST_ADDRESS);
  for (let at = from, open = 1; at < most; at++) {
    if (text[at] === "(") open++;
    else if (text[at] === ")" && --open === 0) return at;
  }
  return -1;
}

// A link is its words, with the address behind them; nobody is led anywhere by what a model writes.
function link(text, at, depth) {
  const from = at + (text[at] === "!" ? 2 : 1);
  const middle = text.indexOf("](", from);
  const end = middle < 0 ? -1 : closed(text, middle + 2);
  if (end < 0 || text.slice(from, middle).includes("\n")) return [null, at + 1];
  const words = text.slice(from, middle), address = text.slice(middle + 2, end);
  const shown = depth < DEEPEST ? inline(words, depth + 1) : [words];
  return [el("span", { class: "link" }, ...shown, address && address !== words ? el("span", { class: "address" }, ` (${address})`) : null), end + 1];
}
