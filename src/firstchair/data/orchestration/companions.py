"""Files beside a file of records for people to read: indented JSON, a transcript, a page with search and filters.

All three are streamed: memory is that of one record and of a short index. The page is one HTML file without any
request of its own; it opens thousands of records at once, because the browser reads a record only when it is opened
or searched. Records may hold markup, scripts or instructions: they are data to the page and only ever become text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from firstchair.core.atomic import atomic_writer, refuse_existing
from firstchair.core.html import script_hash, script_json
from firstchair.data.orchestration.views import USES, View, money

BUDGET = 64_000_000
"""Characters of records that a page holds, about; a browser reads so much in a second or two."""
TEXT_LIMITS = (8_000, 4_000, 1_500, 600)
"""Characters kept of one text on the page, tried in this order until the budget holds."""
EXCERPT = 180
"""Characters of a problem in the list."""


@dataclass(frozen=True)
class Written:
    """What became of it."""

    html: Path
    json: Path
    text: Path
    records: int
    cut: int
    """Characters kept of one text on the page; the other two files are whole."""


def write_companions(views: Callable[[], Iterator[View]], html: Path, *, title: str, force: bool = False) -> Written:
    """Write the page to ``html``, and the other two under the same name with ``.json`` and ``.txt``.

    Raises ``ConfigError`` when one exists without ``force``, and what reading the records raises; none is there then.
    """
    beside_json, beside_text = html.with_suffix(".json"), html.with_suffix(".txt")
    for path in (html, beside_json, beside_text):
        refuse_existing(path, force=force)
    limit = text_limit(views())
    count = 0
    with ExitStack() as files:
        page, whole, text = (
            files.enter_context(atomic_writer(path, force=force)) for path in (html, beside_json, beside_text)
        )

        def told() -> Iterator[View]:
            nonlocal count
            for view in views():
                whole.write(",\n" if count else "[\n")
                whole.write(json.dumps(msgspec.to_builtins(view), ensure_ascii=False, indent=1))
                text.write(transcript(view))
                count += 1
                yield view
            whole.write("\n]\n" if count else "[]\n")

        for piece in page_of(told(), title=title, limit=limit):
            page.write(piece)
    return Written(html, beside_json, beside_text, count, limit)


def text_limit(views: Iterator[View], *, budget: int = BUDGET) -> int:
    """The largest of ``TEXT_LIMITS`` with which the texts of all records keep to ``budget``, else the smallest."""
    sums = dict.fromkeys(TEXT_LIMITS, 0)
    for view in views:
        sizes = [len(text) for text in _texts(view)]
        for limit in TEXT_LIMITS:
            sums[limit] += sum(min(size, limit) for size in sizes)
    return next((limit for limit in TEXT_LIMITS if sums[limit] <= budget), TEXT_LIMITS[-1])


def _texts(view: View) -> Iterator[str]:
    yield from (view.problem, view.answer, view.gold)
    for said in view.messages:
        yield from (said.text, said.thinking)
        yield from (arguments for _, arguments in said.calls)
    yield from (tool.description or "" for tool in view.tools)


def page_of(views: Iterator[View], *, title: str, limit: int) -> Iterator[str]:
    """The page in pieces; reads ``views`` once."""
    script, style = _asset("page.js"), _asset("style.css")
    index: list[dict[str, Any]] = []

    def lines() -> Iterator[Markup]:
        for view in views:
            index.append(_entry(view))
            yield Markup(script_json(_shown(view, limit)))

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    yield from environment.from_string(_asset("page.html.j2")).generate(
        title=title.encode("utf-8", "replace").decode("utf-8"),  # of a file whose name may be no Unicode
        lines=lines(),
        index=lambda: Markup(script_json(index)),
        uses=USES,
        script=Markup(script),
        script_hash=script_hash(script),
        style=Markup(style),
    )


def _asset(name: str) -> str:
    return (resources.files("firstchair.data.orchestration") / "viewer" / name).read_text(encoding="utf-8")


def _entry(view: View) -> dict[str, Any]:
    """What the list and its filters need of a record."""
    return {
        "id": view.id,
        "domain": view.domain,
        "difficulty": view.difficulty,
        "dataset": view.dataset,
        "grade": grade(view),
        "clean": view.clean,
        "kept": view.kept,
        "reasons": [reason for reason, _ in view.reasons],
        "experts": list(view.experts),
        "usd": view.cost_usd,
        "cost": "" if view.cost_usd is None else money(view.cost_usd),
        "problem": _cut(" ".join(view.problem[: 4 * EXCERPT].split()), EXCERPT, note=False),
    }


def _shown(view: View, limit: int) -> dict[str, Any]:
    """What an opened record shows."""
    messages = [
        msgspec.structs.replace(
            said,
            text=_cut(said.text, limit),
            thinking=_cut(said.thinking, limit),
            calls=tuple((name, _cut(arguments, limit)) for name, arguments in said.calls),
        )
        for said in view.messages
    ]
    shown: Mapping[str, Any] = {
        "task": view.task,
        "problem": _cut(view.problem, limit),
        "answer": _cut(view.answer, limit),
        "gold": _cut(view.gold, limit),
        "reasons": view.reasons,
        "names": view.names,
        "facts": view.facts,
        "uses": view.uses,
        "messages": messages,
        "tools": [{"name": tool.name, "text": _cut(tool.description or "", limit)} for tool in view.tools],
    }
    return {name: msgspec.to_builtins(value) for name, value in shown.items() if value}


def _cut(text: str, limit: int, *, note: bool = True) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]} … [{len(text) - limit:,} more characters]" if note else f"{text[:limit]}…"


def grade(view: View) -> str:
    """Its grade in words."""
    if view.correct is None:
        return "broken" if view.broken else "not graded"
    return "correct" if view.correct else "wrong"


def transcript(view: View) -> str:
    """A record as plain text."""
    gate = "" if view.clean is None else "clean" if view.clean else "unclean"
    states = ", ".join(filter(None, (grade(view), gate, "kept" if view.kept else "")))
    lines = [f"==== {view.id} ====", states, *(f"{name}: {text}" for name, text in view.facts.items())]
    lines += [f"unclean, {reason}: {found}" for reason, found in view.reasons]
    if view.names:
        lines.append("names: " + ", ".join(f"{label} = {name}" for label, name in view.names.items()))
    lines += ["  ".join(f"{column} {cell}" for column, cell in zip(USES, use, strict=True)) for use in view.uses]
    lines += [f"answer: {view.answer}"] if view.answer else []
    lines += [f"gold: {view.gold}"] if view.gold else []
    for said in view.messages:
        head = " ".join(filter(None, (said.role, said.name, "(failed)" if said.failed else "")))
        lines += ["", f"[{head}{', not trained' if said.trained is False else ''}]"]
        lines += [f"(thinks) {said.thinking}"] if said.thinking else []
        lines += [said.text] if said.text else []
        lines += [f"-> {name} {arguments}" for name, arguments in said.calls]
    return "\n".join(lines) + "\n\n\n"
