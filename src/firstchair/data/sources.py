"""Where sessions come from: a trace store, an export, a golden set; and which of them are meant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from firstchair.chat.messages import Tool
from firstchair.core.errors import ConfigError, DataError
from firstchair.core.jsonl import SkipBad, read_jsonl
from firstchair.data.golden.golden_set import GoldenSet
from firstchair.data.sft import read_sft
from firstchair.data.similarity import conversation_text
from firstchair.data.task_sources.rows import PARQUET
from firstchair.data.task_sources.task_file import read_tasks
from firstchair.traces.decisions import DecisionPoint, decision_points
from firstchair.traces.filters import Filters, label_spellings
from firstchair.traces.rows import label_text
from firstchair.traces.session import Session
from firstchair.traces.session_file import read_catalogs, read_sessions
from firstchair.traces.store import TraceStore

Item = TypeVar("Item")

SQLITE_MAGIC = b"SQLite format 3\x00"


@dataclass(frozen=True)
class Selection:
    """Conditions that all hold; an absent one does not restrict."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """Label → value; ``1`` finds 1, 1.0 and "1"."""
    source: str = ""
    tool: str = ""
    """A tool that was called."""
    ids: frozenset[str] | None = None
    """Session ids, of a part of a split say."""
    ids_from: str = ""
    """Where ``ids`` come from, for the record."""
    limit: int | None = None

    def admits(self, session: Session) -> bool:
        """Whether ``session`` is meant (``limit`` aside)."""
        if self.ids is not None and session.session_id not in self.ids:
            return False
        if self.source and session.source != self.source:
            return False
        if self.tool and not any(
            call.name == self.tool for message in session.messages for call in message.tool_calls
        ):
            return False
        return all(
            name in session.labels and label_text(session.labels[name]) in label_spellings(value)
            for name, value in self.labels.items()
        )

    def words(self) -> tuple[str, ...]:
        """The conditions in words."""
        said = [f"label {name}={value}" for name, value in self.labels.items()]
        said += [f"{name} {value}" for name in ("source", "tool", "limit") if (value := getattr(self, name))]
        return (*said, *((f"ids of {self.ids_from}",) if self.ids is not None else ()))


@dataclass(frozen=True)
class SessionSource:
    """An open source of sessions."""

    name: str
    sessions: Callable[[], Iterator[Session]]
    """Streams the selected sessions, in stable order; may be called again."""
    tools: Callable[[str], tuple[Tool, ...]]
    """Catalog id → tools."""
    decisions: Callable[[Session], tuple[DecisionPoint, ...]] = decision_points
    """The decisions of one of its sessions; from a golden set, with their gold."""


@contextmanager
def open_source(
    where: str, selection: Selection = Selection(), *, training: bool = False, skip: SkipBad | None = None
) -> Iterator[SessionSource]:
    """Open a store (URL or SQLite file), an export (directory or ``sessions.jsonl``) or a golden set.

    ``skip`` takes unreadable lines of an export; the other two have none. Raises ``ConfigError`` when there is
    nothing to open, and for a frozen set with ``training``: nobody trains on the scoreboard.
    """
    path = Path(where)
    if "://" in where or _is_sqlite(path):
        with TraceStore.open(where, must_exist=True) as store:
            known: dict[str, tuple[Tool, ...]] = {}

            def tools(catalog_id: str) -> tuple[Tool, ...]:
                if catalog_id not in known:
                    known[catalog_id] = store.tools(catalog_id)
                return known[catalog_id]

            yield SessionSource(where, lambda: _limited(store.sessions(**_filters(selection)), selection), tools)
        return
    if not path.exists():
        raise ConfigError(
            f"{where}: nothing there; give a trace store, an export of `traces export`, or a golden set"
        )
    if path.is_dir() and (path / "manifest.json").is_file():
        yield _golden_source(path, selection, training=training)
        return
    tables = read_catalogs(path)

    def exported() -> Iterator[Session]:
        if skip is not None:
            skip.skipped.clear()  # streamed once more, the same lines are bad
        return _limited(read_sessions(path, skip=skip), selection)

    yield SessionSource(where, exported, _lookup(tables, where))


def _golden_source(path: Path, selection: Selection, *, training: bool) -> SessionSource:
    golden = GoldenSet.load(path, draft=True)
    if training and golden.manifest.status == "frozen":
        raise ConfigError(f"{path} is a frozen golden set, the scoreboard; train on other sessions")
    per_session = {session.session_id: decisions for session, decisions in golden.by_session()}
    return SessionSource(
        str(path),
        lambda: _limited(iter(golden.sessions.values()), selection),
        _lookup({key: row.tools for key, row in golden.catalogs.items()}, str(path)),
        lambda session: per_session[session.session_id],
    )


def _lookup(tables: Mapping[str, tuple[Tool, ...]], where: str) -> Callable[[str], tuple[Tool, ...]]:
    def tools(catalog_id: str) -> tuple[Tool, ...]:
        if not catalog_id:
            return ()
        if catalog_id not in tables:
            raise DataError(f"no tools for catalog {catalog_id[:12]}…; catalogs.jsonl must lie beside", path=where)
        return tables[catalog_id]

    return tools


def _filters(selection: Selection) -> Filters:
    """What the database can sift itself; ids stay out (a statement takes only so many values)."""
    filters: Filters = {}
    if selection.labels:
        filters["labels"] = selection.labels
    if selection.source:
        filters["source"] = selection.source
    if selection.tool:
        filters["tool"] = selection.tool
    return filters


def _limited(sessions: Iterator[Session], selection: Selection) -> Iterator[Session]:
    left = selection.limit
    for session in sessions:
        if left is not None and left <= 0:
            return
        if selection.admits(session):
            yield session
            left = None if left is None else left - 1


def _is_sqlite(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as handle:
        return handle.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC


def conversation_texts(where: str) -> Iterator[tuple[str, str]]:
    """Id and compared text of every conversation in a source of sessions, a file of SFT records, or one of tasks.

    Raises ``DataError`` when there is none: comparing with nothing finds nothing, and would pass for a check.
    """
    return some(_conversation_texts(where), "no conversation in it, so nothing was compared", where)


def some(items: Iterable[Item], problem: str, where: str) -> Iterator[Item]:
    """``items``, of which there must be one. Raises ``DataError`` with ``problem`` of ``where`` after none."""
    empty = True
    for item in items:
        empty = False
        yield item
    if empty:
        raise DataError(problem, path=where)


def _conversation_texts(where: str) -> Iterator[tuple[str, str]]:
    if holds_tasks(where):
        for task in read_tasks(Path(where)):
            yield task.task_id, task.problem
        return
    if holds_sft(where):
        for record in read_sft(Path(where)):
            yield record.id, conversation_text(record.messages)
        return
    with open_source(where) as source:
        for session in source.sessions():
            yield session.session_id, conversation_text(session.messages)


def holds_sft(where: str) -> bool:
    """Whether it is a file of SFT records, and no source of sessions."""
    first = _first_row(where)
    return first is not None and "session_id" not in first


def holds_tasks(where: str) -> bool:
    """Whether it is a file of tasks for an orchestrator."""
    return where.endswith(PARQUET) or "problem" in (_first_row(where) or {})


def _first_row(where: str) -> dict[str, Any] | None:
    """The first line of a JSON Lines file, ``{}`` of an empty one; ``None`` when it is something else."""
    path = Path(where)
    if not path.is_file() or _is_sqlite(path):
        return None
    return next((row for _, row in read_jsonl(path)), {})
