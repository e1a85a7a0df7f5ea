"""The Pareto page: accuracy against cost as one HTML file that needs nothing else, and the same figures as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import jinja2
import msgspec
from markupsafe import Markup

from firstchair.core.atomic import refuse_existing, write_texts
from firstchair.core.clock import utc_now
from firstchair.evals.pareto import ParetoPoint
from firstchair.evals.report import interval, percent

WIDTH, HEIGHT = 760.0, 420.0
LEFT, RIGHT, TOP, BOTTOM = 72.0, 44.0, 22.0, 60.0
"""The drawing and its margins, in its own units; the page scales it."""
TICKS = 5


def write_pareto(points: Sequence[ParetoPoint], out: Path, *, title: str, force: bool = False) -> None:
    """Write ``out`` (HTML) and the same name with ``.json``; raises ``ConfigError`` when either exists without
    ``force``.
    """
    beside = out.with_suffix(".json")
    for path in (out, beside):
        refuse_existing(path, force=force)
    figures = json.dumps(msgspec.to_builtins(points), ensure_ascii=False, indent=1) + "\n"
    write_texts({beside: figures, out: render(points, title=title)}, force=force)


def render(points: Sequence[ParetoPoint], *, title: str) -> str:
    """The page as one HTML text."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(percent=percent, interval=interval, usd=usd)
    drawn = plot_of(points)
    return environment.from_string(_asset("page.html.j2")).render(
        points=points,
        plot=drawn,
        title=title,
        style=Markup(_asset("style.css")),
        made_at=utc_now(),
        frame=(WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM),
    )


def _asset(name: str) -> str:
    return (resources.files("firstchair.evals") / "pareto_page" / name).read_text(encoding="utf-8")


def usd(value: float | None) -> str:
    """``0.0123`` → ``$0.0123``: as many decimals as show three digits; a dash for no value."""
    if value is None:
        return "–"
    decimals = 2 if value == 0 else min(8, max(2, 2 - math.floor(math.log10(abs(value)))))
    return f"${value:.{decimals}f}"


@dataclass(frozen=True)
class Mark:
    """One point, in the drawing's units, with the ends of its two intervals."""

    number: int
    """From 1; the row of the table."""
    x: float
    y: float
    x_low: float
    x_high: float
    y_low: float
    y_high: float
    label_y: float
    point: ParetoPoint


@dataclass(frozen=True)
class Plot:
    """Everything that is drawn."""

    marks: tuple[Mark, ...]
    line: str
    """The frontier as points of a polyline."""
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]


def plot_of(points: Sequence[ParetoPoint]) -> Plot:
    """Points that have cost and accuracy, placed. Both axes begin and end at round numbers around the intervals."""
    shown = [
        (number, point)
        for number, point in enumerate(points, start=1)
        if point.cost_usd.value is not None and point.accuracy.value is not None
    ]
    if not shown:
        return Plot((), "", (), ())
    costs = _axis(0.0, max(point.cost_usd.high or 0.0 for _, point in shown))
    shares = _axis(
        min(_or(point.accuracy.low, 0.0) for _, point in shown), max(point.accuracy.high or 0.0 for _, point in shown)
    )

    def x(value: float) -> float:
        return round(LEFT + (value - costs[0]) / (costs[-1] - costs[0]) * (WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - (value - shares[0]) / (shares[-1] - shares[0]) * (HEIGHT - TOP - BOTTOM), 1)

    marks: list[Mark] = []
    for number, point in shown:
        cost, share = point.cost_usd, point.accuracy
        assert cost.value is not None
        assert share.value is not None
        at = (x(cost.value), y(share.value))
        marks.append(
            Mark(
                number=number,
                x=at[0],
                y=at[1],
                x_low=x(_or(cost.low, cost.value)),
                x_high=x(_or(cost.high, cost.value)),
                y_low=y(_or(share.low, share.value)),
                y_high=y(_or(share.high, share.value)),
                label_y=_free(at, marks),
                point=point,
            )
        )
    best = sorted((mark.x, mark.y) for mark in marks if mark.point.frontier)
    return Plot(
        tuple(marks),
        " ".join(f"{at[0]},{at[1]}" for at in best),
        tuple((x(value), f"${value:.6g}") for value in costs),
        tuple((y(value), f"{100 * value:.3g}%") for value in shares),
    )


def _or(value: float | None, instead: float) -> float:
    return instead if value is None else value


LABEL = 15.0
"""Height of a number beside its point."""


def _free(at: tuple[float, float], marks: Sequence[Mark]) -> float:
    """Where the number of a point goes so that it lies on no other's: above it, or further up."""
    level = at[1] - 9
    near = sorted((mark.label_y for mark in marks if abs(mark.x - at[0]) < 2 * LABEL), reverse=True)
    for taken in near:
        if abs(taken - level) < LABEL:
            level = taken - LABEL
    return round(max(level, 12.0), 1)


def _axis(low: float, high: float) -> list[float]:
    """Round numbers, evenly apart, the first at most ``low`` and the last at least ``high``."""
    span = (high - low) or abs(high) or 1.0
    size = 10.0 ** math.floor(math.log10(span / TICKS))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if span / (factor * size) <= TICKS)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]
