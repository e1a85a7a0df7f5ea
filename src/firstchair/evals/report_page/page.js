"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = new Map(data.cases.map((entry) => [entry.id, entry]));
  const $ = (id) => document.getElementById(id);
  const words = new Map([...$("f-verdict").options].map((option) => [option.value, option.textContent]));
  const PAGE = 150;
  const state = { ids: null, what: "", verdict: "failures", route: "", text: "", shown: PAGE, current: null };

  // Stored text may be anything, so it only ever becomes a text node.
  const make = (tag, className, ...children) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    for (const child of children) if (child !== null && child !== undefined) node.append(child);
    return node;
  };
  const word = (verdict) => words.get(verdict) || verdict;
  const dot = (verdict) => make("span", "dot v-" + verdict);
  const level = () => (document.documentElement.dataset.level === "strict" ? "strict" : "lenient");

  const setLevel = (name) => {
    document.documentElement.dataset.level = name;
    for (const button of document.querySelectorAll("[data-set-level]"))
      button.setAttribute("aria-pressed", String(button.dataset.setLevel === name));
    renderList();
  };

  const haystack = (entry) => (entry.search ??= JSON.stringify(entry).toLowerCase());

  const matches = (entry) => {
    if (state.ids) return state.ids.has(entry.id);
    const verdict = entry.after[level()];
    if (state.verdict === "failures" && (verdict === "pass" || verdict === "error")) return false;
    if (state.verdict === "undecided" && !entry.after.undecided) return false;
    if (state.verdict && !["failures", "undecided"].includes(state.verdict) && verdict !== state.verdict) return false;
    if (state.route && entry.route !== state.route) return false;
    return !state.text || haystack(entry).includes(state.text);
  };

  const fieldOf = (entry) => (entry.after[level()] !== "pass" && entry.after.field ? " · " + entry.after.field : "");

  const found = () => data.cases.filter(matches);

  const renderList = () => {
    const list = $("list");
    const entries = found();
    list.replaceChildren();
    for (const entry of entries.slice(0, state.shown)) {
      const button = make(
        "button", "", dot(entry.after[level()]), entry.route,
        entry.after.route === entry.route ? fieldOf(entry) : " → " + entry.after.route, make("span", "where", entry.id));
      button.type = "button";
      button.dataset.id = entry.id;
      button.setAttribute("aria-current", String(entry.id === state.current));
      list.append(make("li", "", button));
    }
    if (entries.length > state.shown) {
      const more = make("button", "", `show ${Math.min(PAGE, entries.length - state.shown)} more`);
      more.type = "button";
      more.addEventListener("click", () => { state.shown += PAGE; renderList(); });
      list.append(make("li", "", more));
    }
    if (!entries.length) list.append(make("li", "", make("p", "sub", " No decision matches.")));
    $("f-count").textContent = `${entries.length.toLocaleString("en")} of ${data.cases.length.toLocaleString("en")}` +
      (state.ids ? `: ${state.what}` : "");
  };

  // The differing middle of two texts, with what they share before and after it.
  const marked = (text, other) => {
    if (other === undefined || text === other) return [text];
    let start = 0;
    const shortest = Math.min(text.length, other.length);
    while (start < shortest && text[start] === other[start]) start++;
    let end = 0;
    while (end < shortest - start && text[text.length - 1 - end] === other[other.length - 1 - end]) end++;
    return [text.slice(0, start), make("mark", "", text.slice(start, text.length - end)), text.slice(text.length - end)];
  };

  const argRows = (call, gold) => {
    if (typeof call.args === "string") return [make("pre", "raw", call.args)];
    const goldArgs = gold && typeof gold.args === "object" ? gold.args : null;
    const rows = [];
    const keys = goldArgs ? [...new Set([...Object.keys(goldArgs), ...Object.keys(call.args)])] : Object.keys(call.args);
    for (const key of keys) {
      const mine = call.args[key];
      const theirs = goldArgs ? goldArgs[key] : mine;
      const value = mine === undefined
        ? make("span", "absent", "left out")
        : make("span", "", ...(goldArgs ? marked(mine, theirs) : [mine]));
      rows.push(make("div", mine === theirs ? "arg" : "arg differs", make("span", "", key), value));
    }
    return rows;
  };

  const actionBox = (action, gold) => {
    const box = make("div", "");
    if (!action) return make("div", "sub", "no action");
    if (action.thinking) box.append(make("p", "thought", action.thinking));
    const rest = gold ? [...(gold.calls || [])] : [];
    for (const call of action.calls || []) {
      const at = rest.findIndex((other) => other.name === call.name);
      const twin = at >= 0 ? rest.splice(at, 1)[0] : null;
      box.append(make("p", "call", call.name), ...argRows(call, twin));
    }
    if (action.text) box.append(make("p", "say", action.text));
    if (!(action.calls || []).length) box.prepend(make("p", "sub", "final reply"));
    return box;
  };

  const side = (title, verdict, body) =>
    make("section", "side", make("h4", "", make("span", "", title), verdict ? make("span", "", dot(verdict), word(verdict)) : null), body);

  const sideOf = (title, part, gold) => {
    const body = actionBox(part.action, gold);
    if (part.error) body.append(make("p", "raw", part.error));
    if (part.problems) body.append(make("p", "sub", part.problems.join("; ")));
    if (part.raw) body.append(make("pre", "raw", part.raw));
    return side(title, part[level()], body);
  };

  const messageBox = (message) => {
    const body = make("div", "body");
    if (message.thinking) body.append(make("div", "thought", message.thinking));
    if (message.text) body.append(make("div", "say", message.text));
    for (const call of message.calls || [])
      body.append(make("div", "", make("span", "call", call.name), " ", make("span", "mono say", call.args)));
    const name = message.role === "tool" && message.name ? message.name : message.role;
    return make("div", `msg ${message.role}${message.error ? " failed" : ""}`, make("b", "", message.error ? name + " (failed)" : name), body);
  };

  const conversation = (entry) => {
    const all = data.sessions[entry.session];
    if (!all) return make("p", "sub", "The conversation is left out of this file.");
    const seen = all.slice(0, entry.end);
    const box = make("div", "");
    const shownFrom = Math.max(0, seen.length - 6);
    const draw = (from) => box.replaceChildren(...seen.slice(from).map(messageBox));
    draw(shownFrom);
    if (!shownFrom) return box;
    const button = make("button", "plain more", `show the ${shownFrom} earlier messages`);
    button.type = "button";
    button.addEventListener("click", () => { draw(0); button.remove(); });
    return make("div", "", button, box);
  };

  const step = (by) => {
    const ids = found().map((entry) => entry.id);
    const next = ids[Math.min(ids.length - 1, Math.max(0, ids.indexOf(state.current) + by))];
    if (next) show(next);
  };

  const caseHead = (entry) => {
    const back = make("button", "plain", "‹ previous");
    const on = make("button", "plain", "next ›");
    back.addEventListener("click", () => step(-1));
    on.addEventListener("click", () => step(1));
    return make("div", "casehead", make("h3", "mono", entry.id), make("span", "", back, " ", on));
  };

  const caseChips = (entry) => {
    const chips = make("div", "chips");
    const add = (...children) => chips.append(make("span", "chip", ...children));
    add("strict: ", dot(entry.after.strict), word(entry.after.strict));
    add("lenient: ", dot(entry.after.lenient), word(entry.after.lenient));
    add("decided by: ", entry.after.rule, entry.after.field ? ` at ${entry.after.field}` : "");
    if (entry.after.undecided) add("undecided by code");
    if (entry.accept) add(`${entry.accept} accepted alternatives`);
    if (!entry.verified) add("gold not verified");
    for (const tag of entry.tags) add(tag);
    return chips;
  };

  const render = (entry) => {
    const sides = make("div", "sides", side("gold", "", actionBox(entry.gold, null)), sideOf("candidate", entry.after, entry.gold));
    if (entry.before) sides.append(sideOf("baseline", entry.before, entry.gold));
    for (const bad of entry.known_bad) sides.append(side("known mistake", "", actionBox(bad, entry.gold)));
    $("case").replaceChildren(
      caseHead(entry), caseChips(entry), sides, make("h3", "", "What the candidate saw"), conversation(entry));
  };

  const show = (id) => {
    const entry = byId.get(id);
    if (!entry) return;
    state.current = id;
    render(entry);
    for (const button of $("list").querySelectorAll("button[data-id]"))
      button.setAttribute("aria-current", String(button.dataset.id === id));
  };

  const reset = (changes) => {
    Object.assign(state, { ids: null, what: "", shown: PAGE }, changes);
    renderList();
  };

  const clear = (changes) => {
    for (const id of ["f-verdict", "f-route", "f-text"]) $(id).value = "";
    reset({ verdict: "", route: "", text: "", ...changes });
  };

  const narrow = (ids, what) => {
    // The other filters do not hold here, so they must not say that they do.
    clear({ ids: new Set(ids), what });
    show(ids[0]);
    $("cases").scrollIntoView();
  };

  const fromHash = () => {
    const hash = location.hash.slice(1);
    if (hash.startsWith("level=")) setLevel(hash.slice(6));
    if (hash.startsWith("case=")) narrow([decodeURIComponent(hash.slice(5))], "one case");
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.setLevel) setLevel(button.dataset.setLevel);
    else if (button.dataset.ids) narrow(JSON.parse(button.dataset.ids), button.dataset.what);
    else if (button.dataset.id) show(button.dataset.id);
  });
  $("f-verdict").addEventListener("change", (event) => reset({ verdict: event.target.value }));
  $("f-route").addEventListener("change", (event) => reset({ route: event.target.value }));
  $("f-text").addEventListener("input", (event) => reset({ text: event.target.value.toLowerCase() }));
  $("f-clear").addEventListener("click", () => clear({}));
  addEventListener("hashchange", fromHash);

  renderList();
  show(found()[0]?.id ?? data.cases[0]?.id);
  fromHash();
})();
