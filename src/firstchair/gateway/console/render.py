"""Templates, words and charts of the console. Everything from outside is escaped; charts are SVG without text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from firstchair.catalog.token_counts import NANO
from firstchair.core.jsontext import JsonProblem, loads
from firstchair.traces.times import utc_text

ASSETS = {"style.css": "text/css", "live.js": "text/javascript"}


@cache
def asset(name: str) -> bytes:
    """A file that pages load. The look is that of the replay report, with what the console needs beside."""
    if name == "style.css":
        report = resources.files("firstchair.evals") / "report_page" / "style.css"
        return (report.read_text(encoding="utf-8") + _text(name)).encode()
    return _text(name).encode()


@cache
def asset_url(name: str) -> str:
    """Changes with the content, so that browsers may keep it."""
    return f"/assets/{name}?v={hashlib.sha256(asset(name)).hexdigest()[:12]}"


def _text(name: str) -> str:
    return (resources.files("firstchair.gateway.console") / "page" / name).read_text(encoding="utf-8")


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        **{one.__name__: one for one in (usd, when, clock, count, many, percent, ms, pretty, short, middle)}
    )
    environment.globals.update(asset_url=asset_url, bar=bar, columns=columns, stack=stack)
    return environment


def render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


# --- words ------------------------------------------------------------------------------------------------------


def usd(nano: int | None) -> str:
    """Dollars for reading: cents from a dollar on, four decimals below, and what is smaller is told as such."""
    if nano is None:
        return "–"
    value = Decimal(abs(nano)) / NANO
    sign = "−" if nano < 0 else ""
    if value and value < Decimal("0.0001"):
        return f"{sign}< $0.0001"
    return f"{sign}${value:,.2f}" if value >= 1 or not value else f"{sign}${value:.4f}"


def when(at: int | str | None) -> str:
    """``2026-01-31 12:00:00`` of microseconds or of an ISO 8601 text."""
    if at is None or at == "":
        return "–"
    text = utc_text(at) if isinstance(at, int) else at
    return text[:19].replace("T", " ")


def clock(at: int | str) -> str:
    """``12:00:00`` of today (UTC); of another day with its date."""
    text = when(at)
    return text[11:] if text[:10] == str(datetime.now(UTC).date()) else text


def count(value: int) -> str:
    """``12,345``; from a million on ``1.23 M``."""
    if abs(value) >= 1_000_000_000:
        return f"{value / 1e9:,.2f} G"
    return f"{value:,}" if abs(value) < 1_000_000 else f"{value / 1e6:,.2f} M"


def many(value: int, word: str) -> str:
    """``1 call``, ``12 calls``."""
    return f"{count(value)} {word}{'' if value == 1 else 's'}"


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f}%"


def ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f} ms" if value < 10_000 else f"{value / 1000:,.1f} s"


def short(text: str, length: int = 60) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def middle(text: str, length: int) -> str:
    """Cut in the middle: ids often differ in their ends only."""
    tail = length // 2
    return text if len(text) <= length else f"{text[: length - 1 - tail]}…{text[-tail:]}"


def pretty(text: str) -> str:
    """JSON text with indents; anything else as it is."""
    try:
        return json.dumps(loads(text), ensure_ascii=False, indent=2)
    except JsonProblem:
        return text


# --- charts -----------------------------------------------------------------------------------------------------


def bar(value: float, most: float, tone: str = "") -> Markup:
    """A horizontal bar; its number stands beside it, so that it says nothing to a screen reader."""
    width = 0.0 if most <= 0 else max(0.0, min(100.0, 100 * value / most))
    return Markup(
        '<svg class="meter {}" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
        '<rect class="track" width="100" height="8"/><rect class="fill" width="{:.2f}" height="8"/></svg>'
    ).format(tone, width)


def stack(counts: dict[str, int]) -> Markup:
    """Shares in one bar, each in the class of its name."""
    total = sum(counts.values())
    parts, left = [], 0.0
    for name, value in counts.items():
        width = 100 * value / total if total else 0.0
        parts.append(
            Markup('<rect class="a-{}" x="{:.2f}" width="{:.2f}" height="8"><title>{}</title></rect>').format(
                name, left, width, f"{name.replace('_', ' ')}: {value:,}"
            )
        )
        left += width
    return Markup(
        '<svg class="meter tall" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
        "{}</svg>"
    ).format(Markup("").join(parts))


def columns(values: Sequence[tuple[str, float, str]], about: str) -> Markup:
    """Columns over time: (name, value, words for it). The figures stand in a table below."""
    most = max((value for _, value, _ in values), default=0)
    width = 100 / max(7, len(values))  # one day is a column too, not a wall
    parts = []
    for place, (name, value, words) in enumerate(values):
        height = 40 * value / most if most > 0 else 0
        if value > 0:
            height = max(height, 0.5)
        parts.append(
            Markup('<rect x="{:.3f}" y="{:.3f}" width="{:.3f}" height="{:.3f}"><title>{}</title></rect>').format(
                place * width + width * 0.1, 40 - height, width * 0.8, height, f"{name}: {words}"
            )
        )
    return Markup(
        '<svg class="columns" viewBox="0 0 100 40" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(about, Markup("").join(parts))
