"use strict";
// New calls come in at the top every two seconds; without this script the page loads itself anew.
(() => {
  const body = document.getElementById("live");
  const news = document.getElementById("news");
  const pause = document.getElementById("pause");
  if (!body || !news || !pause) return;
  const EVERY_MS = 2000, KEPT = 200;
  let paused = false, failures = 0;

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Go on" : "Pause";
    news.textContent = paused ? "Paused" : "";
    if (!paused) look();
  });

  async function look() {
    if (paused || document.hidden) return;
    const query = new URLSearchParams({ after: body.dataset.last, slot: body.dataset.slot });
    const answer = await fetch("/calls/rows?" + query, { redirect: "manual" });
    if (answer.type === "opaqueredirect") { location.reload(); return; }
    if (!answer.ok) throw new Error(String(answer.status));
    const rows = await answer.text();
    const count = Number(answer.headers.get("x-calls"));
    failures = 0;
    if (!count || paused) return;
    body.dataset.last = answer.headers.get("x-last-seq");
    body.insertAdjacentHTML("afterbegin", rows); // made and escaped by the server
    while (body.rows.length > KEPT) body.lastElementChild.remove();
    document.getElementById("none")?.remove();
    news.textContent = count === 1 ? "1 new call" : count + " new calls";
  }

  async function turn() {
    try {
      await look();
    } catch {
      failures += 1;
      if (failures === 2) news.textContent = "The gateway does not answer; trying on";
    }
    setTimeout(turn, EVERY_MS * Math.min(1 + failures, 8));
  }
  setTimeout(turn, EVERY_MS);
})();
