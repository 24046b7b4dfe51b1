// What a page that everybody can use must not have: a list of what is wrong with what is shown now.
() => {
  const wrong = [];
  const shown = [...document.querySelectorAll("body *")].filter((node) => node.checkVisibility());
  const channel = (value) => ((value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const colour = (text) => (text.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const opaque = (parts) => parts.length < 4 || parts[3] === 1;
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const found = colour(getComputedStyle(node).backgroundColor);
      if (opaque(found)) return found;
    }
    return [255, 255, 255];
  };
  for (const node of shown) {
    const where = `${node.tagName.toLowerCase()}#${node.id}.${node.getAttribute("class") ?? ""}`;
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (own && node.tagName !== "OPTION" && !node.classList.contains("unseen")) {
      const style = getComputedStyle(node);
      const ink = colour(node instanceof SVGElement ? style.fill : style.color);
      const [a, b] = [luminance(ink), luminance(behind(node))].sort((x, y) => y - x);
      const ratio = (a + 0.05) / (b + 0.05);
      const needed = parseFloat(style.fontSize) >= 24 ? 3 : 4.5;
      if (ratio < needed) wrong.push(`${where}: contrast ${ratio.toFixed(2)} of "${node.textContent.trim().slice(0, 30)}"`);
    }
    if (node.matches("input, select, textarea") && !node.labels.length) wrong.push(`${where}: no label`);
    if (node.matches("button, [role=tab], a[href]") && !(node.getAttribute("aria-label") ?? node.textContent).trim())
      wrong.push(`${where}: no name`);
    if (node.matches("[role=img], [role=log], [role=region], dialog, [role=tabpanel], [role=tablist]")) {
      const named = node.getAttribute("aria-label") ?? document.getElementById(node.getAttribute("aria-labelledby"))?.textContent;
      if (!named?.trim()) wrong.push(`${where}: no name`);
    }
    if (node.matches("img") && !node.hasAttribute("alt")) wrong.push(`${where}: no alternative text`);
    if (node.matches("button, select, input") && node.getBoundingClientRect().height < 24) wrong.push(`${where}: too small to touch`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push(`#${id} is there twice`);
  for (const node of document.querySelectorAll("[for], [aria-controls], [aria-labelledby]"))
    for (const name of ["for", "aria-controls", "aria-labelledby"])
      if (node.hasAttribute(name) && !document.getElementById(node.getAttribute(name))) wrong.push(`${name} names nothing`);
  if (!document.documentElement.lang) wrong.push("no language");
  if (document.documentElement.scrollWidth > innerWidth) wrong.push(`wider than the window: ${document.documentElement.scrollWidth}`);
  const end = document.querySelector("main").getBoundingClientRect().bottom + scrollY;
  const height = document.documentElement.scrollHeight;
  if (height > Math.max(innerHeight, end + 1)) wrong.push(`taller than its content: ${height}, which ends at ${end}`);
  return wrong;
}
