// What a page of the console does wrong for somebody without a mouse, without sight, or with little of it.
(() => {
  const wrong = [];
  const shown = (e) => e.getClientRects().length > 0 && getComputedStyle(e).visibility !== "hidden";
  const named = (e) => e.outerHTML.replace(/\s+/g, " ").slice(0, 90);
  const all = (selector) => [...document.querySelectorAll(selector)].filter(shown);
  const tell = (rule, e) => wrong.push(`${rule}: ${e instanceof Element ? named(e) : e}`);

  if (!document.documentElement.lang) tell("no language", document.documentElement);
  if (document.title.length < 5) tell("no title", document.title);
  if (document.querySelectorAll("main").length !== 1) tell("not one main landmark", document.body);
  for (const e of all("nav, section, [role=region]"))
    if (!e.ariaLabel && !document.getElementById(e.getAttribute("aria-labelledby"))?.textContent) tell("landmark without a name", e);
  for (const e of document.body.children)
    if (shown(e) && !e.matches("header, main, .skip")) tell("outside of every landmark", e);
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of new Set(ids)) if (ids.filter((one) => one === id).length > 1) tell("an id twice", id);

  const levels = all("h1, h2, h3, h4, h5, h6").map((e) => Number(e.tagName[1]));
  if (levels.filter((level) => level === 1).length !== 1 || levels[0] !== 1) tell("not one first heading", String(levels));
  levels.forEach((level, i) => { if (i && level > levels[i - 1] + 1) tell("a level of headings is left out", String(levels)); });

  for (const e of all("input:not([type=hidden]), select, textarea"))
    if (!e.labels?.length || ![...e.labels].some((label) => label.textContent.trim())) tell("field without a label", e);
  for (const e of all("[tabindex]")) if (e.tabIndex > 0) tell("positive tabindex", e);
  for (const table of all("table")) {
    for (const th of table.querySelectorAll("th"))
      if (!th.scope || !th.textContent.trim()) tell("header cell without scope or text", th);
    if (!table.tHead || [...table.tHead.rows[0].cells].some((cell) => cell.tagName !== "TH")) tell("table without headers", table);
    const columns = table.tHead?.rows[0].cells.length;
    for (const row of table.tBodies[0].rows)
      if ([...row.cells].reduce((sum, cell) => sum + cell.colSpan, 0) !== columns) tell("row of another width", row);
  }

  const inText = (e) => getComputedStyle(e).display === "inline" && e.closest("p")?.textContent.trim() !== e.textContent.trim();
  for (const e of all("a, button, input:not([type=hidden]), select, textarea, summary")) {
    const box = e.getBoundingClientRect();
    if (!e.matches(".skip") && !inText(e) && (box.width < 23.9 || box.height < 23.9)) tell(`target of ${box.width}x${box.height}`, e);
    if (e.matches("p a") && inText(e) && !getComputedStyle(e).textDecorationLine.includes("underline")) tell("link known by colour only", e);
  }
  if (document.documentElement.scrollWidth > innerWidth) tell("wider than the window", `${document.documentElement.scrollWidth} px`);
  for (const e of all("main *")) {
    const clipped = e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX === "hidden" && !e.matches(".gone, .gone *");
    if (clipped) tell("cut off", e);
  }

  // Contrast by WCAG 2.2: relative luminance of the text over what lies under it.
  const colour = (text) => { const n = text.match(/[\d.]+/g).map(Number); return [n[0], n[1], n[2], n[3] ?? 1]; };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const under = (e) => {
    const layers = [];
    for (let at = e; at; at = at.parentElement) layers.push(colour(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1]);
  };
  const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, part, i) => {
    const v = c[i] / 255;
    return sum + part * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  }, 0);
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !shown(e) || e.closest(".skip, .gone, option, noscript")) continue;
    const style = getComputedStyle(e), ground = under(e);
    const [a, b] = [light(over(colour(style.color), ground)), light(ground)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) tell(`contrast of ${ratio.toFixed(2)}`, e);
  }
  return wrong;
})()
