"""How stored sessions are printed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from firstchair.chat.messages import CallMark, ImagePart, Message, RawPart, TextPart, ThinkingPart, Tool, ToolCall
from firstchair.cli.tables import Column, counted, number, one_line, print_json, print_list, table
from firstchair.core.jsontext import loads
from firstchair.traces.filters import Filters
from firstchair.traces.importing import ImportReport
from firstchair.traces.rows import label_text
from firstchair.traces.session import Session
from firstchair.traces.stats import StoreStats
from firstchair.traces.store import SessionRow

SHORT_CHARS = 1_200
"""How much of one text is shown unless all of it is asked for."""


def make_filters(
    labels: dict[str, str], source: str, tool: str, since: str, until: str, ids: Sequence[str] | None = None
) -> Filters:
    """The given options as filters; options that were not given do not restrict."""
    filters: Filters = {}
    if labels:
        filters["labels"] = labels
    if source:
        filters["source"] = source
    if tool:
        filters["tool"] = tool
    if since:
        filters["since"] = since
    if until:
        filters["until"] = until
    if ids:
        filters["session_ids"] = ids
    return filters


def print_imports(reports: list[ImportReport], url: str, *, as_json: bool) -> None:
    """What became of each file."""
    if as_json:
        print_json({"store": url, "files": msgspec.to_builtins(reports)})
        return
    console = Console()
    made = table("file", "#added", "#here already", "#replaced", "#kept", "#skipped", "#messages")
    for report in reports:
        counts = (report.added, report.duplicates, report.replaced, report.kept, report.skipped, report.messages)
        made.add_row(Text(report.path), *(f"{count:,}" for count in counts))
    console.print(made)
    for report in reports:
        if report.skipped_file:
            one = report.skipped == 1
            said = f"{counted(report.skipped, 'bad record')} {'is' if one else 'are'} listed in {report.skipped_file}"
            console.print(Text(said))
    console.print(Text(f"store: {url}"))


def print_listing(rows: Iterable[SessionRow], total: int, *, wide: bool, as_json: bool) -> None:
    """One line a session. What all of them share stands below the list, unless it is ``wide``."""
    if as_json:
        print_json([{**row._asdict(), "labels": loads(row.labels)} for row in rows])
        return
    listed = list(rows)
    labels = [{name: label_text(value) for name, value in loads(row.labels).items()} for row in listed]
    shared = {} if wide else _shared(labels)
    one_source = not wide and len({row.source for row in listed}) == 1
    if listed:
        parts = _columns(listed, _own_labels(labels, shared), source=not one_source, wide=wide)
        columns, cells = zip(*parts, strict=True)
        print_list(columns, list(zip(*cells, strict=True)), wide=wide)
    same = [f"source {listed[0].source}"] if one_source else []
    same += [one_line(f"{name}={value}") for name, value in shared.items()]
    if same:
        who = "it has" if len(listed) == 1 else "all shown have" if len(listed) < total else "all have"
        typer.echo(f"{who} {' '.join(same)}")
    hints = ["--limit shows more"] if len(listed) < total else []
    hints += ["--wide cuts nothing"] if listed and not wide else []
    shown = f"{len(listed):,} of {counted(total, 'session')}" if len(listed) < total else counted(total, "session")
    typer.echo("; ".join([shown, *hints]))


def _columns(
    rows: Sequence[SessionRow], labels: list[str], *, source: bool, wide: bool
) -> list[tuple[Column, list[str]]]:
    parts = [(Column("session", "middle", least=24), [row.session_id for row in rows])]
    if source:
        parts.append((Column("source"), [row.source for row in rows]))
    parts.append((Column("recorded"), [row.created_at[: 19 if wide else 10] for row in rows]))
    parts.append((number("turns"), [f"{row.num_turns:,}" for row in rows]))
    if wide:
        parts.append((number("messages"), [f"{row.num_messages:,}" for row in rows]))
    parts.append((number("calls"), [f"{row.num_tool_calls:,}" for row in rows]))
    parts.append((number("errors"), [f"{row.num_tool_errors:,}" for row in rows]))
    if any(labels):
        parts.append((Column("labels", "end"), labels))
    return parts


def _shared(labels: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Labels that are the same on every session."""
    first = labels[0] if labels else {}
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in labels)}


def _own_labels(labels: Sequence[Mapping[str, str]], shared: Mapping[str, str]) -> list[str]:
    """Every session's other labels in words.

    Those with few different values come first: they tell groups apart, and the end is what gets cut.
    """
    values: dict[str, set[str]] = {}
    for own in labels:
        for name, value in own.items():
            values.setdefault(name, set()).add(value)
    order = sorted(values.keys() - shared.keys(), key=lambda name: (len(values[name]), name))
    return [" ".join(f"{name}={own[name]}" for name in order if name in own) for own in labels]


def print_stats(stats: StoreStats, url: str, *, as_json: bool) -> None:
    """Counts, sources and tools."""
    if as_json:
        print_json({"store": url, **msgspec.to_builtins(stats)})
        return
    console = Console()
    facts = table("", "#", header=False)
    for name in ("sessions", "turns", "messages", "tool_calls", "tool_errors", "model_calls", "model_errors"):
        facts.add_row(name.replace("_", " "), f"{getattr(stats, name):,}")
    for name in ("input", "output", "cache_read", "cache_write"):
        facts.add_row(f"tokens {name.replace('_', ' ')}", f"{getattr(stats, f'tokens_{name}'):,}")
    facts.add_row("cost", f"{stats.cost_usd:,.4f} USD")
    facts.add_row("tool lists", f"{stats.catalogs:,}")
    if stats.first_created_at:
        facts.add_row("recorded", f"{stats.first_created_at[:19]} to {stats.last_created_at[:19]}")
    console.print(facts)
    sources = table("source", "#sessions")
    for source, count in stats.by_source.items():
        sources.add_row(source, f"{count:,}")
    console.print(sources)
    tools = table("tool", "#calls", "#errors", "#sessions")
    for tool in stats.tools:
        tools.add_row(Text(tool.tool), f"{tool.calls:,}", f"{tool.errors:,}", f"{tool.sessions:,}")
    console.print(tools)
    console.print(Text(f"store: {url}"))


def print_session(session: Session, tools: tuple[Tool, ...], origin: str, *, full: bool, as_json: bool) -> None:
    """One conversation, turn by turn."""
    if as_json:
        print_json({**msgspec.to_builtins(session), "tools": msgspec.to_builtins(tools), "origin": origin})
        return
    console = Console()
    console.print(_head(session, tools, origin))
    turn_at = {turn.start: number for number, turn in enumerate(session.turns, 1)}
    call_names = {call.id: call.name for message in session.messages for call in message.tool_calls}
    for index, message in enumerate(session.messages):
        if index and index == session.context_end:
            console.rule("recording begins", style="dim")
        if index in turn_at:
            console.rule(f"turn {turn_at[index]}", style="dim", align="left")
        console.print(_panel(index, message, call_names, full=full))


def _head(session: Session, tools: tuple[Tool, ...], origin: str) -> Table:
    facts = table("", "", header=False)
    rows = {
        "session": session.session_id,
        "source": session.source,
        "recorded": session.created_at,
        "labels": " ".join(f"{name}={label_text(value)}" for name, value in session.labels.items()),
        "tools": ", ".join(tool.name for tool in tools),
        "model": ", ".join(sorted({call.model for call in session.calls if call.model})),
        "read from": origin,
    }
    for name, value in rows.items():
        if value:
            facts.add_row(name, Text(value))
    return facts


_STYLES = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}


def _panel(index: int, message: Message, call_names: dict[str, str], *, full: bool) -> Panel:
    body = Text()
    for part in message.content:
        match part:
            case TextPart():
                _line(body, part.text, "", full=full)
            case ThinkingPart():
                _line(body, part.text, "dim italic", full=full)
            case ImagePart():
                _line(body, f"[image {part.url}]", "magenta", full=False, limit=120)
            case RawPart():
                _line(body, json.dumps(part.data, ensure_ascii=False), "magenta", full=full)
            case CallMark():
                _line(body, call_text(message.tool_calls[part.index]), "bold", full=full)
    if not any(isinstance(part, CallMark) for part in message.content):
        for call in message.tool_calls:
            _line(body, call_text(call), "bold", full=full)
    title = f"{index} {message.role}"
    if message.role == "tool":
        title += f" {message.name or call_names.get(message.tool_call_id or '', '')}"
    if message.is_error:
        title += " ERROR"
    style = "red" if message.is_error else _STYLES[message.role]
    return Panel(body, title=Text(title), title_align="left", border_style=style, box=box.ROUNDED)


def call_text(call: ToolCall) -> str:
    """One call in one line, its arguments as they stand: so they can be copied into a correction."""
    return f"→ {call.name}({call.arguments})" + (" malformed" if call.parsed() is None else "")


def _line(body: Text, text: str, style: str, *, full: bool, limit: int = SHORT_CHARS) -> None:
    if body:
        body.append("\n")
    shown = text if full or len(text) <= limit else text[:limit]
    # Control characters of a recording must not reach the terminal.
    shown = "".join(char if char >= " " or char in "\n\t" else "\ufffd" for char in shown.replace("\x7f", "\ufffd"))
    body.append(shown, style=style)
    if len(shown) < len(text):
        body.append(f" … {len(text) - len(shown):,} more characters (--full)", style="dim")
