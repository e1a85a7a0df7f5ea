"""Every page of the console in both themes, in a real browser: usable by keyboard, screen reader and on a phone."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from tests.chromium import Tab, chromium
from tests.gateway.console.live import LONG_SESSION, LONG_SLOT, live_console

RULES = (Path(__file__).parent / "accessible.js").read_text(encoding="utf-8")
PAGES = (
    *("/", f"/slots/{LONG_SLOT}", "/slots/desk", "/slots/desk?made=2&behind=1", "/slots/notes/rollback?to=1"),
    *("/slots/desk/promote?route=local/orchestrator-4b", "/slots/desk/rollback", "/calls", "/calls?slot=none"),
    *("/ledger", "/ledger?days=0&slot=desk", "/shadow", "/shadow?days=0", "/sessions", "/sessions?tool=none"),
    *(f"/sessions/{quote(LONG_SESSION)}-0", "/sessions/shop/1", "/sessions/shop/2", "/keys", "/nothing"),
)
WIDTHS = (1280, 768, 360, 320)
CONTROLS = {"button", "checkbox", "combobox", "link", "listbox", "radio", "searchbox", "switch", "textbox"}
NAMED = {*CONTROLS, "heading", "image", "navigation", "region"}

FOCUSABLE = """[...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")]
    .filter(e => !e.disabled && e.type !== "hidden" && e.checkVisibility({visibilityProperty: true}))"""
NUMBERED = f"{FOCUSABLE}.forEach((e, i) => e.dataset.stop = i)"
TO_THE_TOP = """(() => {
    const top = Object.assign(document.createElement("span"), {tabIndex: -1}); // a field may have the focus already
    document.body.prepend(top), top.focus();
})()"""
STOPS = f"{FOCUSABLE}.length"
FOCUS = """(() => {
    const e = document.activeElement, style = getComputedStyle(e), box = e.getBoundingClientRect();
    const bar = e.closest(".bar, .skip") ? 0 : document.querySelector(".bar")?.getBoundingClientRect().bottom ?? 0;
    const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
    return [e.dataset.stop ?? null, seen, box.bottom > bar && box.top < innerHeight, e.outerHTML.slice(0, 90)];
})()"""


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    with live_console(tmp_path_factory.mktemp("console")) as found:
        yield found


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def log_in(tab: Tab, url: str, key: str) -> None:
    """By keyboard alone: the field has the focus."""
    tab.open(f"{url}/login")
    if tab.run("location.pathname") == "/login":
        tab.wait_for("document.activeElement.tagName === 'INPUT'")
        tab.send("Input.insertText", text=key)
        before = tab.loads
        tab.press("Enter")
        tab.wait_loaded(before)
    assert tab.run("location.pathname") == "/"


def unnamed(tab: Tab) -> list[str]:
    """Nodes of the accessibility tree that a screen reader could only call by their role."""
    found = []
    for node in tab.send("Accessibility.getFullAXTree")["nodes"]:
        role = node.get("role", {}).get("value", "")
        if not node.get("ignored") and role in NAMED and not node.get("name", {}).get("value", "").strip():
            found.append(f"{role} without a name: node {node['backendDOMNodeId']}")
    return found


def by_keyboard(tab: Tab) -> list[str]:
    """What Tab does not reach in the order of the page, and where the focus cannot be seen."""
    tab.run(f"scrollTo(0, 0), {NUMBERED}, {TO_THE_TOP}")
    stops, wrong = tab.run(STOPS), []
    tab.send("Page.bringToFront")
    for expected in range(stops):
        tab.press("Tab")
        stop, is_outlined, is_in_view, html = tab.run(FOCUS)
        if stop != str(expected):
            return [*wrong, f"Tab leads to stop {stop} instead of {expected} of {stops}: {html}"]
        if not is_outlined:
            wrong.append(f"focus that is not seen: {html}")
        if not is_in_view:
            wrong.append(f"focus out of view: {html}")
    return wrong


def findings(tab: Tab, page: str, *, dark: bool) -> list[str]:
    """Of the page that is open, as (page, theme, width): what is wrong."""
    wrong = []
    for width in WIDTHS:
        tab.show(width=width, dark=dark)
        wrong += [f"{width} px: {what}" for what in tab.run(RULES)]
    wrong += unnamed(tab)
    return [f"{page} {'dark' if dark else 'light'} {what}" for what in wrong]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_page_is_accessible(live, tab, dark):
    url, key = live
    tab.send("Network.clearBrowserCookies")
    tab.show(width=1280, dark=dark)
    tab.open(f"{url}/login")
    wrong = findings(tab, "/login", dark=dark)
    log_in(tab, url, key)
    for page in PAGES:
        tab.open(url + page)
        wrong += findings(tab, page, dark=dark)
    assert not wrong, "\n".join(wrong)


def test_every_page_is_reached_by_keyboard_and_shows_where_the_focus_is(live, tab):
    url, key = live
    log_in(tab, url, key)
    wrong = []
    for page in PAGES:
        tab.show(width=360, dark=False, height=700)
        tab.open(url + page)
        wrong += [f"{page} {what}" for what in by_keyboard(tab)]
    assert not wrong, "\n".join(wrong)
    assert [text for text in tab.said if "404" not in text] == []
