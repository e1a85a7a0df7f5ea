"""The report: one HTML file that needs nothing else, and the same numbers as JSON beside it.

Stored sessions may hold markup, scripts or instructions. Everything is escaped by the template engine or set as
text by the page's own script; the page's content policy allows that one script, and no network at all.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from firstchair.catalog.verdict import Verdict
from firstchair.core.atomic import refuse_existing, write_texts
from firstchair.core.html import script_hash, script_json
from firstchair.data.golden.golden_set import GoldenSet
from firstchair.evals.metrics import SHOWN, Prices
from firstchair.evals.report_cases import report_cases
from firstchair.evals.report_data import Completion, ReportData, report_data, to_json
from firstchair.evals.routing import SKILL_TOOLS
from firstchair.evals.run_record import Run

VERDICT_WORDS = {
    Verdict.PASS: "pass",
    Verdict.WRONG_ARGS: "wrong arguments",
    Verdict.WRONG_TOOL: "wrong tool",
    Verdict.PREMATURE_STOP: "stopped too early",
    Verdict.FAILED_TO_STOP: "failed to stop",
    Verdict.MALFORMED: "malformed",
    Verdict.KNOWN_BAD_REPEATED: "known mistake repeated",
    Verdict.ERROR: "error (not scored)",
}


def write_report(
    run: Run,
    golden: GoldenSet,
    out: Path,
    baseline: Run | None = None,
    *,
    force: bool = False,
    allow_serving: bool = False,
    prices: Prices | None = None,
    completion: Completion | None = None,
) -> ReportData:
    """Write ``out`` (HTML) and the same name with ``.json``; returns what they say.

    Raises ``ConfigError`` when either exists without ``force`` or the runs cannot be compared.
    """
    beside = out.with_suffix(".json")
    for path in (out, beside):
        refuse_existing(path, force=force)
    data = report_data(run, golden, baseline, allow_serving=allow_serving, prices=prices, completion=completion)
    page = render(data, report_cases(run, golden, baseline))
    numbers = json.dumps(to_json(data), ensure_ascii=False, indent=1) + "\n"
    # Both or neither: a lone JSON file would make the next try ask for --force.
    write_texts({beside: numbers, out: page}, force=force)
    return data


def render(data: ReportData, cases: dict[str, Any]) -> str:
    """The page as one HTML text."""
    script, style = _asset("page.js"), _asset("style.css")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(percent=percent, points=points, interval=interval, short=_short)
    words = {str(key): word for key, word in VERDICT_WORDS.items()}
    environment.globals.update(words=words, plot=plot, tone=tone, skill_tools=SKILL_TOOLS)
    return environment.from_string(_asset("page.html.j2")).render(
        data=data,
        shown={metric.name for metric in SHOWN},
        changes=data.comparison.metrics if data.comparison else {},
        tool_changes={change.tool: change for change in data.comparison.tools} if data.comparison else {},
        cases_json=Markup(script_json(cases)),
        left_out=cases["left_out"],
        cut=cases["cut"],
        script=Markup(script),
        script_hash=script_hash(script),
        style=Markup(style),
    )


def _asset(name: str) -> str:
    return (resources.files("firstchair.evals") / "report_page" / name).read_text(encoding="utf-8")


def percent(value: float | None, digits: int = 1) -> str:
    """``0.873`` → ``87.3%``; a dash for no value."""
    return "–" if value is None else f"{100 * value:.{digits}f}%"


def points(value: float | None) -> str:
    """A difference of rates in percentage points, with its sign."""
    if value is None:
        return "–"
    return "0.0" if round(100 * value, 1) == 0 else f"{100 * value:+.1f}".replace("-", "−")


def tone(difference: Any, better: str = "higher") -> str:
    """``up``, ``down``, or nothing while the interval of the difference holds zero."""
    if difference.value is None or difference.low <= 0 <= difference.high:
        return ""
    return "up" if (difference.value > 0) == (better == "higher") else "down"


def interval(rate: Any) -> str:
    """``84.1–90.2`` in percent, or in signed points for a difference."""
    if rate.low is None:
        return ""
    if rate.method.startswith("paired"):
        return f"{points(rate.low)} to {points(rate.high)}"
    return f"{100 * rate.low:.1f}–{100 * rate.high:.1f}"


def _short(text: str, length: int = 12) -> str:
    return text if len(text) <= length else text[:length] + "…"


def plot(after: Any, before: Any = None) -> Markup:
    """A rate with its interval on a line from 0 to 1; ``before`` stands hollow above it."""

    def mark(rate: Any, name: str) -> str:
        if rate is None or rate.value is None:
            return ""
        low, high, value = (100 * part for part in (rate.low, rate.high, rate.value))
        return (
            f'<i class="{name}i" style="left:{low:.1f}%;width:{max(high - low, 0.5):.1f}%"></i>'
            f'<b class="{name}b" style="left:{value:.1f}%"></b>'
        )

    two = " two" if before is not None and before.value is not None else ""
    return Markup(f'<span class="plot{two}" aria-hidden="true">{mark(before, "was-")}{mark(after, "now-")}</span>')
