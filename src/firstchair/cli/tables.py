"""Tables and JSON of the commands: one look, and lists that keep to one line a row whatever the terminal's width."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from firstchair.evals.stats import Rate

Cut = Literal["never", "middle", "end"]

GAP = 2
"""Cells between two columns of a list."""


class Column(NamedTuple):
    """A column of a list, and how its texts are shortened when a row does not fit."""

    title: str
    cut: Cut = "never"
    """``middle`` keeps both ends, for ids; ``end`` keeps the beginning, for texts."""
    least: int = 12
    """Cells that it keeps as long as others can give."""
    number: bool = False


def number(title: str) -> Column:
    """A column of numbers: to the right, never cut."""
    return Column(title, number=True)


def counted(count: int, noun: str) -> str:
    """``1 session``, ``2,000 sessions``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def rate_row(rate: Rate) -> dict[str, float | int | None]:
    """A rate for machines: its value, its count and its 95% interval."""
    return {"value": rate.value, "n": rate.n, "low": rate.low, "high": rate.high}


def print_json(value: Any) -> None:
    """JSON for machines: one document, non-ASCII kept."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2))


def table(*columns: str, title: str = "", header: bool = True) -> Table:
    """An empty table whose texts wrap; columns that begin with ``#`` hold numbers."""
    made = Table(
        box=box.SIMPLE_HEAD if header else box.SIMPLE,
        show_header=header,
        title=title or None,
        title_justify="left",
        pad_edge=False,
    )
    for name in columns:
        right = name.startswith("#")
        made.add_column(name.removeprefix("#"), justify="right" if right else "left", no_wrap=right, overflow="fold")
    return made


def print_list(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, title: str = "", wide: bool = False
) -> None:
    """Print rows of one line each. They fit the terminal (80 cells into a pipe), or are whole when ``wide``."""
    console = Console()
    lines = [[one_line(cell) for cell in row] for row in rows]
    natural = [max(map(cell_len, texts)) for texts in zip([column.title for column in columns], *lines, strict=True)]
    gaps = GAP * (len(columns) - 1)
    widths = natural if wide else fitted(columns, natural, console.width - gaps)
    # Wider than the terminal, if need be: a row that was asked for whole must not be folded into two.
    console = Console(width=max(console.width, sum(widths) + gaps))
    made = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, GAP - 1, 0, 0),
        title=title or None,
        title_justify="left",
    )
    for column, width in zip(columns, widths, strict=True):
        made.add_column(
            column.title, justify="right" if column.number else "left", no_wrap=True, min_width=width, max_width=width
        )
    for line in lines:
        cells = zip(line, columns, widths, strict=True)
        made.add_row(*(Text(shortened(text, width, column.cut)) for text, column, width in cells))
    console.print(made, "")


def fitted(columns: Sequence[Column], natural: Sequence[int], available: int) -> list[int]:
    """Widths that add up to ``available`` cells at most, taken from the columns that may be cut.

    Whatever is widest above its ``least`` gives first; when all are down to that, they go on to one cell. Columns
    that are never cut keep their natural width, even where the sum is then too large.
    """
    widths = list(natural)
    for floor in ("least", "one"):
        lowest = [column.least if floor == "least" else 1 for column in columns]
        giving = [place for place, column in enumerate(columns) if column.cut != "never"]
        while sum(widths) > available:
            place = max(giving, key=lambda at: widths[at] - lowest[at], default=None)
            if place is None or widths[place] <= lowest[place]:
                break
            widths[place] -= 1
    return widths


def shortened(text: str, width: int, cut: Cut) -> str:
    """``text`` in at most ``width`` cells, with ``…`` where something is left out."""
    if cut == "never" or cell_len(text) <= width:
        return text
    if width < 1:
        return ""
    head = width - 1 if cut == "end" else width // 2
    tail = width - 1 - head
    return f"{_first(text, head)}…{_first(text[::-1], tail)[::-1]}"


def _first(text: str, width: int) -> str:
    """As many characters of the beginning as ``width`` cells hold."""
    used = 0
    for place, char in enumerate(text):
        used += cell_len(char)
        if used > width:
            return text[:place]
    return text


def one_line(text: str) -> str:
    """``text`` without line breaks, runs of white space and control characters of a recording."""
    return "".join(char if char.isprintable() else "\ufffd" for char in " ".join(text.split()))
