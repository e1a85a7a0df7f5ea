"""A golden set: frozen sessions with the right action at each decision, the scoreboard of replay eval.

A directory of ``sessions.jsonl``, ``catalogs.jsonl`` and ``manifest.json``. Every reader checks every checksum before
it looks at anything; one changed byte and nothing is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from firstchair.catalog.call_rules import Matchers
from firstchair.chat.messages import Message, Tool
from firstchair.core.errors import ConfigError, DataError, IntegrityError
from firstchair.core.jsontext import dumps
from firstchair.data.golden.manifest import CATALOGS, RESTORE, SESSIONS, Manifest, read_manifest
from firstchair.data.golden.record import from_line, to_row
from firstchair.traces.decisions import DecisionPoint, context
from firstchair.traces.session import Session, catalog_id_of


class CatalogRow(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One line of ``catalogs.jsonl``: the tools that sessions were offered, and how their arguments are compared."""

    catalog_id: str
    tools: tuple[Tool, ...]
    matchers: dict[str, dict[str, str]] = {}
    """Tool → JSON path below the arguments → matcher."""
    kinds: dict[str, str] = {}
    """Tool → ``universal`` or ``convention``."""
    read_only: tuple[str, ...] = ()
    """Tools without effects."""
    extra_read_only: int = 0
    """How many calls of those beside the wanted ones still pass leniently."""
    tool_names: dict[str, str] = {}
    """Name on the wire → tool."""


@dataclass(frozen=True)
class GoldenSet:
    """A golden set in memory; ``load`` is the only way to get a frozen one."""

    manifest: Manifest
    sessions: Mapping[str, Session]
    """Session id → session, in the order of the file."""
    decisions: tuple[DecisionPoint, ...]
    """Every decision of every session, in order."""
    catalogs: Mapping[str, CatalogRow]
    """Catalog id → tools, matchers and kinds."""
    path: Path | None = field(default=None, compare=False)

    @classmethod
    def load(cls, path: Path | str, *, draft: bool = False) -> GoldenSet:
        """Read a set after checking every checksum.

        Raises ``IntegrityError`` naming the file when a byte differs, ``DataError`` when it is no golden set,
        ``ConfigError`` for a draft unless ``draft`` is set (drafts are read to be corrected, never to be scored).
        """
        directory = Path(path)
        manifest = read_manifest(directory)
        if manifest.status == "draft" and not draft:
            raise ConfigError(
                f"{directory} is a draft; nothing is scored on it; freeze it first: firstchair golden freeze"
            )
        raw = {name: _checked_bytes(directory / name, sha256) for name, sha256 in sorted(manifest.files.items())}
        for name in (SESSIONS, CATALOGS):
            if name not in raw:
                raise IntegrityError(f"{name} is not in its list of files; {RESTORE}", path=str(directory))
        sessions, decisions = _read_sessions(directory / SESSIONS, raw[SESSIONS])
        catalogs = _read_catalogs(directory / CATALOGS, raw[CATALOGS])
        for session in sessions.values():
            if session.catalog_id and session.catalog_id not in catalogs:
                raise DataError(
                    f"session {session.session_id!r} names catalog {session.catalog_id[:12]}…, which is not here",
                    path=str(directory / CATALOGS),
                )
        return cls(manifest, sessions, decisions, catalogs, directory)

    @property
    def name(self) -> str:
        """The set's name."""
        return self.manifest.name

    @property
    def set_sha256(self) -> str:
        """The hash under which runs are compared."""
        return self.manifest.set_sha256

    def tools(self, session_id: str) -> tuple[Tool, ...]:
        """The tools on offer in a session, as they were recorded."""
        catalog_id = self.sessions[session_id].catalog_id
        return self.catalogs[catalog_id].tools if catalog_id else ()

    def context(self, decision: DecisionPoint) -> tuple[Message, ...]:
        """What the original model saw at ``decision``."""
        return context(self.sessions[decision.session_id], decision)

    @cached_property
    def matchers(self) -> Mapping[str, Mapping[str, str]]:
        """Tool → JSON path below the arguments → matcher."""
        return {tool: paths for row in self.catalogs.values() for tool, paths in row.matchers.items()}

    @cached_property
    def kinds(self) -> Mapping[str, str]:
        """Tool → ``universal`` or ``convention``; a tool that the catalog says nothing about is missing."""
        return {tool: kind for row in self.catalogs.values() for tool, kind in row.kinds.items()}

    @cached_property
    def rules(self) -> Matchers:
        """How calls are compared: everything that the catalog says about it."""
        rows = self.catalogs.values()
        return Matchers.of(
            self.matchers,
            tool_names={other: tool for row in rows for other, tool in row.tool_names.items()},
            read_only=(tool for row in rows for tool in row.read_only),
            extra_read_only=max((row.extra_read_only for row in rows), default=0),
        )

    def by_session(self) -> Iterator[tuple[Session, tuple[DecisionPoint, ...]]]:
        """Each session with its decisions."""
        points: dict[str, list[DecisionPoint]] = {session_id: [] for session_id in self.sessions}
        for decision in self.decisions:
            points[decision.session_id].append(decision)
        for session_id, session in self.sessions.items():
            yield session, tuple(points[session_id])


def session_lines(golden: GoldenSet) -> Iterator[str]:
    """The lines of ``sessions.jsonl``, newline included."""
    for session, decisions in golden.by_session():
        yield dumps(to_row(session, decisions)) + "\n"


def catalog_lines(golden: GoldenSet) -> Iterator[str]:
    """The lines of ``catalogs.jsonl``, newline included."""
    for row in golden.catalogs.values():
        yield dumps(msgspec.to_builtins(row)) + "\n"


def _checked_bytes(path: Path, sha256: str) -> bytes:
    if not path.is_file():
        raise IntegrityError(f"this file of the set is missing; {RESTORE}", path=str(path))
    raw = path.read_bytes()
    found = hashlib.sha256(raw).hexdigest()
    if found != sha256:
        raise IntegrityError(
            f"found sha256 {found[:12]}…; the manifest says {sha256[:12]}…; {RESTORE}", path=str(path)
        )
    return raw


def _lines(raw: bytes) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if line:
            yield number, line


def _read_sessions(path: Path, raw: bytes) -> tuple[dict[str, Session], tuple[DecisionPoint, ...]]:
    sessions: dict[str, Session] = {}
    decisions: list[DecisionPoint] = []
    for number, line in _lines(raw):
        try:
            session, points = from_line(line)
        except DataError as error:
            raise error.at(str(path), number) from None
        if session.session_id in sessions:
            raise DataError(f"{session.session_id!r} stands twice", path=str(path), line=number, field="session_id")
        sessions[session.session_id] = session
        decisions.extend(points)
    return sessions, tuple(decisions)


_catalog_decoder = msgspec.json.Decoder(CatalogRow)


def _read_catalogs(path: Path, raw: bytes) -> dict[str, CatalogRow]:
    rows: dict[str, CatalogRow] = {}
    for number, line in _lines(raw):
        try:
            row = _catalog_decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DataError(f"not a catalog: {error}", path=str(path), line=number) from None
        if catalog_id_of(row.tools) != row.catalog_id:
            raise IntegrityError(
                "the tools are not the ones of this id", path=str(path), line=number, field="catalog_id"
            )
        rows[row.catalog_id] = row
    return rows
