"""The Pareto page: accuracy against cost as one HTML file that needs nothing else, and the same figures as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import jinja2
import msgspec
from markupsafe import Markup

from firstchair.core.atomic import refuse_existing, write_texts
from firstchair.core.clock import utc_now
from firstchair.evals.pareto import ParetoPoint
from firstchair.evals.report import interval, percent


class Frame(NamedTuple):
    """A drawing and its margins, in its own units; the page scales it."""

    width: float
    height: float
    left: float
    right: float
    top: float
    """Room for the numbers of points at the upper edge, and above them for the name of the axis."""
    bottom: float
    ticks: int


WIDE = Frame(760, 440, left=72, right=44, top=42, bottom=60, ticks=5)
NARROW = Frame(360, 340, left=50, right=26, top=42, bottom=52, ticks=4)
"""For a phone, where a shrunken wide one could not be read."""


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
    return environment.from_string(_asset("page.html.j2")).render(
        points=points,
        plots={"wide": plot_of(points, WIDE), "narrow": plot_of(points, NARROW)},
        title=title,
        style=Markup(_asset("style.css")),
        made_at=utc_now(),
    )


def _asset(name: str) -> str:
    return (resources.files("firstchair.evals") / "pareto_page" / name).read_text(encoding="utf-8")


def usd(value: float | None) -> str:
    """``0.0123`` → ``$0.0123``: as many decimals as show three digits; a dash for no value."""
    if value is None:
        return "–"
    decimals = 2 if value == 0 else min(8, max(2, 2 - math.floor(math.log10(abs(value)))))
    return f"${value:.{decimals}f}"


class Box(NamedTuple):
    """What is taken of a drawing."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Whether the two overlap."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def within(self, other: Box) -> bool:
        """Whether all of it lies in ``other``."""
        return (
            other.left <= self.left
            and other.top <= self.top
            and self.right <= other.right
            and self.bottom <= other.bottom
        )


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
    label: Box
    """Where its number stands."""
    point: ParetoPoint

    @property
    def far(self) -> bool:
        """Whether its number stands so far away that a line must lead there."""
        beside = Box(self.x - LABEL_AT[1], self.y - LABEL_AT[1], self.x + LABEL_AT[1], self.y + LABEL_AT[1])
        return not self.label.meets(beside)


@dataclass(frozen=True)
class Plot:
    """Everything that is drawn."""

    frame: Frame
    marks: tuple[Mark, ...]
    line: str
    """The frontier as points of a polyline."""
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]


def plot_of(points: Sequence[ParetoPoint], frame: Frame) -> Plot:
    """Points that have cost and accuracy, placed. Both axes begin and end at round numbers around the intervals."""
    shown = [
        (number, point)
        for number, point in enumerate(points, start=1)
        if point.cost_usd.value is not None and point.accuracy.value is not None
    ]
    if not shown:
        return Plot(frame, (), "", (), ())
    costs = _axis(0.0, max(point.cost_usd.high or 0.0 for _, point in shown), frame.ticks)
    shares = _axis(
        min(_or(point.accuracy.low, 0.0) for _, point in shown),
        max(point.accuracy.high or 0.0 for _, point in shown),
        frame.ticks,
    )

    def x(value: float) -> float:
        along = (value - costs[0]) / (costs[-1] - costs[0])
        return round(frame.left + along * (frame.width - frame.left - frame.right), 1)

    def y(value: float) -> float:
        up = (value - shares[0]) / (shares[-1] - shares[0])
        return round(frame.height - frame.bottom - up * (frame.height - frame.top - frame.bottom), 1)

    places = [(x(_or(point.cost_usd.value, 0.0)), y(_or(point.accuracy.value, 0.0))) for _, point in shown]
    labels = place_labels(places, [str(number) for number, _ in shown], frame)
    marks = [
        Mark(
            number=number,
            x=at[0],
            y=at[1],
            x_low=x(_or(point.cost_usd.low, _or(point.cost_usd.value, 0.0))),
            x_high=x(_or(point.cost_usd.high, _or(point.cost_usd.value, 0.0))),
            y_low=y(_or(point.accuracy.low, _or(point.accuracy.value, 0.0))),
            y_high=y(_or(point.accuracy.high, _or(point.accuracy.value, 0.0))),
            label=label,
            point=point,
        )
        for (number, point), at, label in zip(shown, places, labels, strict=True)
    ]
    best = sorted((mark.x, mark.y) for mark in marks if mark.point.frontier)
    return Plot(
        frame,
        tuple(marks),
        " ".join(f"{at[0]},{at[1]}" for at in best),
        tuple((x(value), f"${Decimal(f'{value:.6g}'):f}") for value in costs),
        tuple((y(value), f"{100 * value:.3g}%") for value in shares),
    )


def _or(value: float | None, instead: float) -> float:
    return instead if value is None else value


DIGIT, LINE = 9.0, 15.0
"""Width of a digit and height of a number beside its point."""
GAP = 6.0
"""Between two numbers, which would read as one."""
MARK = 6.5
"""Half the width of a point."""
AXIS_NAME = 18.0
"""Height of the name of the axis, which stands above everything."""
LABEL_AT = (14.0, 22.0, 36.0, 50.0, 64.0, 78.0, 92.0)
"""Distances of a number from its point, the first that is free."""
_TOWARDS = ((-0.8, -1.0), (0.8, 1.0), (0.8, -1.0), (-0.8, 1.0), (1.0, 0.0), (-1.0, 0.0))
"""Above and to the left first, where no frontier passes: it rises to the right."""


def place_labels(places: Sequence[tuple[float, float]], texts: Sequence[str], frame: Frame) -> list[Box]:
    """Where the number of each point stands: by its side, on no point and no other number, and in the drawing."""
    room = Box(frame.left, AXIS_NAME, frame.width, frame.height - frame.bottom)
    taken = [Box(x - MARK, y - MARK, x + MARK, y + MARK) for x, y in places]
    labels: list[Box] = []
    for (x, y), text in zip(places, texts, strict=True):
        half = (DIGIT * len(text) + GAP) / 2
        centres = ((x + away * right, y + away * down) for away in LABEL_AT for right, down in _TOWARDS)
        boxes = [Box(cx - half, cy - LINE / 2, cx + half, cy + LINE / 2) for cx, cy in centres]
        free = (box for box in boxes if box.within(room) and not any(box.meets(other) for other in taken))
        labels.append(next(free, boxes[0]))
        taken.append(labels[-1])
    return labels


def _axis(low: float, high: float, ticks: int) -> list[float]:
    """Round numbers, evenly apart, the first at most ``low`` and the last at least ``high``."""
    span = (high - low) or abs(high) or 1.0
    size = 10.0 ** math.floor(math.log10(span / ticks))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if span / (factor * size) <= ticks)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]
