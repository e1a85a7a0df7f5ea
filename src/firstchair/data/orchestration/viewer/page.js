"use strict";
(() => {
  const PAGE = 50;
  const FOLD = 1200;
  const SLICE_MS = 12;
  const $ = (id) => document.getElementById(id);
  const index = JSON.parse($("index").textContent);
  const columns = JSON.parse($("columns").textContent);
  // One line a record: read when it is opened or searched, and never all at once.
  const lines = $("records").textContent.trim().split("\n");
  $("records").remove();
  const record = (at) => JSON.parse(lines[at]);
  const view = { found: [], page: 0, run: 0 };

  // Stored text may be anything, so it only ever becomes a text node.
  const el = (name, className, ...children) => {
    const node = document.createElement(name);
    if (className) node.className = className;
    node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
    return node;
  };

  const choices = (id, values) => {
    for (const value of [...new Set(values)].filter(Boolean).sort()) $(id).append(new Option(value, value));
    $(id).closest("label").hidden = $(id).options.length < 2;
  };
  choices("grade", index.map((entry) => entry.grade));
  choices("domain", index.map((entry) => entry.domain));
  choices("reason", index.flatMap((entry) => entry.reasons));
  choices("expert", index.flatMap((entry) => entry.experts));
  $("clean").closest("label").hidden = index.every((entry) => entry.clean === null);
  $("kept").closest("label").hidden = index.every((entry) => entry.kept === null);
  $("order").closest("label").hidden = index.every((entry) => entry.usd === null);
  // With the last field that is shown, so that the button never stands on a line of its own.
  const last = [...document.querySelectorAll("#filters label:not([hidden])")].at(-1), end = el("span", "last");
  last.replaceWith(end);
  end.append(last, document.querySelector("#filters [type=reset]"));

  const admits = (entry) =>
    ["grade", "clean", "kept", "domain"].every((id) => !$(id).value || String(entry[id]) === $(id).value) &&
    (!$("reason").value || entry.reasons.includes($("reason").value)) &&
    (!$("expert").value || entry.experts.includes($("expert").value));

  const textOf = (at) => {
    const it = record(at);
    const said = (it.messages || []).flatMap((one) => [one.text, one.thinking, one.name, ...(one.calls || []).flat()]);
    const beside = [...Object.values(it.names || {}), ...Object.values(it.facts || {}), ...(it.reasons || []).flat()];
    return [index[at].id, it.problem, it.answer, it.gold, ...said, ...beside].filter(Boolean).join("\n").toLowerCase();
  };

  // As the words stand in a line of JSON: what does not hold them there need not be read.
  const written = (words) => JSON.stringify(words).slice(1, -1)
    .replace(/[<>&]/g, (letter) => "\\u00" + letter.charCodeAt(0).toString(16));

  const breathe = () => new Promise((go) => setTimeout(go));

  const search = async () => {
    const run = ++view.run;
    const words = $("text").value.trim().toLowerCase();
    let found = index.keys().toArray ? index.keys().toArray() : [...index.keys()];
    found = found.filter((at) => admits(index[at]));
    if (words) {
      const raw = written(words), hits = [];
      let since = performance.now();
      for (const [count, at] of found.entries()) {
        if (performance.now() - since > SLICE_MS) {
          $("state").textContent = `searching, ${Math.round(100 * count / found.length)}%`;
          await breathe();
          if (run !== view.run) return;
          since = performance.now();
        }
        const near = index[at].id.toLowerCase().includes(words) || lines[at].toLowerCase().includes(raw);
        if (near && textOf(at).includes(words)) hits.push(at);
      }
      found = hits;
    }
    const sign = { dear: -1, cheap: 1 }[$("order").value];
    if (sign) {
      const known = (at) => index[at].usd ?? -sign * Infinity;
      const last = (at) => (index[at].usd === null ? 1 : 0);
      found.sort((a, b) => last(a) - last(b) || sign * (known(a) - known(b)) || a - b);
    }
    view.found = found;
    view.page = 0;
    draw();
  };

  const draw = () => {
    const from = view.page * PAGE, some = view.found.slice(from, from + PAGE);
    $("list").replaceChildren(...some.map(entryOf));
    const total = index.length.toLocaleString("en"), count = view.found.length.toLocaleString("en");
    $("found").textContent = some.length ? `Records ${from + 1}–${from + some.length} of ${count}` : "No record";
    $("state").textContent = view.found.length === index.length ? `${total} in the file` : `${count} of ${total} match`;
    for (const button of document.querySelectorAll(".pager button")) {
      const to = view.page + Number(button.dataset.by);
      button.disabled = to < 0 || to * PAGE >= view.found.length;
    }
    $("all").disabled = !some.length;
    opened(false);
  };

  const chip = (kind, text) => el("span", `chip ${kind}`, text);

  const entryOf = (at) => {
    const entry = index[at];
    const chips = el("span", "chips", chip({ correct: "good", wrong: "bad" }[entry.grade] || "", entry.grade));
    const [reason, ...others] = entry.reasons;
    if (entry.clean) chips.append(" ", chip("good", "clean"));
    if (entry.clean === false && entry.grade !== "broken")
      chips.append(" ", chip("bad", `unclean: ${reason}${others.length ? ` and ${others.length} more` : ""}`));
    if (entry.kept) chips.append(" ", chip("kept", "kept"));
    for (const text of [entry.domain, entry.difficulty, ...entry.experts, entry.cost])
      if (text) chips.append(" ", chip("", text));
    const summary = el("summary", "", el("span", "id", entry.id), " ", chips, el("span", "problem", entry.problem));
    const box = el("details", "record", summary);
    box.addEventListener("toggle", () => { if (box.open && box.children.length === 1) box.append(whole(at)); });
    return box;
  };

  // A long text is shown in part until somebody asks for the rest.
  const folded = (text, className) => {
    const box = el("div", className);
    if (text.length <= FOLD * 1.2) return box.append(text), box;
    const more = el("button", "", `Show the other ${(text.length - FOLD).toLocaleString("en")} characters`);
    more.type = "button";
    more.addEventListener("click", () => { more.replaceWith(text.slice(FOLD)); });
    box.append(text.slice(0, FOLD), more);
    return box;
  };

  const argumentsOf = (text) => {
    let value;
    try { value = JSON.parse(text); } catch { return [folded(text, "code")]; }
    if (typeof value !== "object" || value === null || Array.isArray(value)) return [folded(text, "code")];
    return Object.entries(value).map(([name, item]) =>
      el("div", "arg", el("span", "name", name), folded(typeof item === "string" ? item : JSON.stringify(item), "code")));
  };

  const messageOf = (said, names) => {
    const who = said.role === "tool" && said.name ? said.name : said.role;
    const head = el("div", "who", el("b", "", who));
    if (names[who]) head.append(" ", el("span", "", `= ${names[who]}`));
    if (said.failed) head.append(" ", chip("bad", "failed"));
    if (said.trained !== undefined && said.role === "assistant")
      head.append(" ", chip(said.trained ? "good" : "", said.trained ? "trained" : "not trained"));
    const body = el("div", "what");
    if (said.thinking) body.append(folded(said.thinking, "thinking"));
    if (said.text) body.append(folded(said.text, said.role === "tool" ? "code" : "say"));
    for (const [name, text] of said.calls || [])
      body.append(el("div", "call", el("b", "", name), names[name] ? ` = ${names[name]}` : ""), ...argumentsOf(text));
    if (!body.childNodes.length) body.append(el("span", "none", "nothing"));
    return el("li", `said ${said.role}`, head, body);
  };

  const table = (rows) => {
    const cells = (row, name) => row.map((text, at) => {
      const cell = el(name, at > 1 ? "n" : "", text);
      if (name === "th") cell.scope = "col";
      return cell;
    });
    const box = el("div", "scroll", el("table", "",
      el("thead", "", el("tr", "", ...cells(columns, "th"))),
      el("tbody", "", ...rows.map((row) => el("tr", "", ...cells(row, "td"))))));
    // Wider than a phone, so the keyboard must be able to scroll it.
    box.tabIndex = 0;
    box.role = "region";
    box.ariaLabel = "What was used";
    return box;
  };

  const whole = (at) => {
    const it = record(at), names = it.names || {};
    const facts = el("dl", "facts");
    const fact = (name, body) => facts.append(el("dt", "", name), el("dd", "", body));
    for (const [reason, found] of it.reasons || []) fact(`unclean: ${reason}`, found || "see the messages");
    if (it.answer) fact("answer", folded(it.answer, "say"));
    if (it.gold) fact("gold", folded(it.gold, "say"));
    for (const [name, text] of Object.entries(it.facts || {})) fact(name, text);
    for (const [label, name] of Object.entries(names)) fact(label, name);
    const box = el("div", "whole", facts);
    if ((it.uses || []).length) box.append(el("h3", "", "What was used"), table(it.uses));
    box.append(el("h3", "", "Conversation"), el("ol", "", ...(it.messages || []).map((said) => messageOf(said, names))));
    if ((it.tools || []).length) {
      const tools = el("dl", "facts", ...it.tools.flatMap((tool) => [el("dt", "", tool.name), el("dd", "", tool.text || "–")]));
      box.append(el("details", "tools", el("summary", "", `${it.tools.length} tools, as the policy saw them`), tools));
    }
    return box;
  };

  const opened = (are) => {
    $("all").setAttribute("aria-pressed", String(are));
    $("all").textContent = are ? "Close all on this page" : "Open all on this page";
  };
  $("all").addEventListener("click", async () => {
    const open = $("all").getAttribute("aria-pressed") !== "true", run = view.run, page = view.page;
    opened(open);
    for (const [count, box] of [...$("list").children].entries()) {
      if (run !== view.run || page !== view.page) return;
      box.open = open;
      if (count % 5 === 4) await breathe();
    }
  });

  for (const button of document.querySelectorAll(".pager button"))
    button.addEventListener("click", () => {
      view.page += Number(button.dataset.by);
      draw();
      $("found").focus();
      $("found").scrollIntoView();
    });

  let waiting = 0;
  const soon = () => { clearTimeout(waiting); waiting = setTimeout(search, 200); };
  $("filters").addEventListener("input", (event) => (event.target.id === "text" ? soon() : search()));
  $("filters").addEventListener("reset", () => setTimeout(search));
  $("filters").addEventListener("submit", (event) => { event.preventDefault(); search(); });
  search();
})();
