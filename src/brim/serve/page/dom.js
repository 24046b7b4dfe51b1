// Elements made of text and other elements; never of markup.

export const $ = (id) => document.getElementById(id);

export function el(name, properties = {}, ...children) {
  return furnished(document.createElement(name), properties, children);
}

export function svg(name, properties = {}, ...children) {
  return furnished(document.createElementNS("http://www.w3.org/2000/svg", name), properties, children);
}

function furnished(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

// Change a text only where it differs: what has not changed is not read out again.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function options(select, pairs, chosen) {
  select.replaceChildren(...pairs.map(([value, text]) => el("option", { value }, text)));
  if (chosen !== undefined) select.value = chosen;
}
