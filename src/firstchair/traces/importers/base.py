"""What every importer takes and gives, and the steps that they share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from firstchair.chat.messages import Message, Tool
from firstchair.core.errors import DataError
from firstchair.core.ids import safe_id as safe_id
from firstchair.core.jsonl import SkipBad, parse_line, read_lines
from firstchair.core.jsontext import JsonProblem, loads_bytes
from firstchair.traces.checks import check_session
from firstchair.traces.redact import redact
from firstchair.traces.session import Session, Source, catalog_id_of, turns_of
from firstchair.traces.times import normal_time


@dataclass
class ImportOptions:
    """How to read a file of foreign recordings."""

    source: Source | None = None
    """Overrides what the file or the format says."""
    labels: Mapping[str, Any] = field(default_factory=dict)
    """Added to every session; the file's own labels win."""
    tools_path: Path | None = None
    """A JSON file with the tool list that sessions without one were offered."""
    error_prefixes: tuple[str, ...] | None = None
    """Texts that a failed tool result begins with; ``None`` is the format's own rule, ``()`` marks none."""
    skip: SkipBad = field(default_factory=SkipBad)
    on_bytes: Callable[[int], None] | None = None
    """Hears the size of each block read."""


class Imported(NamedTuple):
    """One session read, with the tools that it was offered."""

    session: Session
    tools: tuple[Tool, ...]
    origin: str = ""
    """``file:line`` or ``file[record]:line``."""
    received: str | None = None
    """The tool list's wire text, byte for byte, where the file has it as such."""


Importer = Callable[[Path, ImportOptions], Iterator[Imported]]


class Head(NamedTuple):
    """The fields of a record beside its messages and tools."""

    session_id: str
    source: Source
    created_at: str
    labels: dict[str, Any]
    meta: dict[str, Any]


def read_head(row: Mapping[str, Any], options: ImportOptions, *, used: frozenset[str], default: Source) -> Head:
    """The head of a record: ``session_id`` or ``id``, ``source``, ``created_at`` or ``timestamp``, ``labels``.

    Every other field that the importer has not ``used`` goes to ``meta``, without credentials. A missing id is
    left empty. Raises ``DataError`` with ``field``.
    """
    rest = {key: value for key, value in row.items() if key not in used}
    session_id = _take_id(rest)
    source = rest.pop("source", None) if rest.get("source") in _SOURCES else None
    created = next((rest.pop(name) for name in ("created_at", "timestamp", "created") if name in rest), None)
    labels = rest.pop("labels", {})
    if not isinstance(labels, dict):
        raise DataError(f"found {type(labels).__name__}; expected an object of names and values", field="labels")
    return Head(
        session_id=session_id,
        source=options.source or source or default,
        created_at=normal_time(created),
        labels={**options.labels, **redact(labels)},
        meta=redact(rest),
    )


_SOURCES = frozenset({"production", "scripted", "synthetic", "rollout"})


def _take_id(rest: dict[str, Any]) -> str:
    for name in ("session_id", "id"):
        if name in rest:
            value = rest.pop(name)
            if isinstance(value, bool) or not isinstance(value, str | int):
                raise DataError(f"found {type(value).__name__}; expected a text or an integer", field=name)
            if value != "":
                return str(value)
    return ""


def make_session(
    head: Head, messages: tuple[Message, ...], tools: tuple[Tool, ...], *, catalog_id: str | None, prefix: str
) -> Session:
    """A checked session; without an id it is named by its content, so that the same record has the same name."""
    session = Session(
        session_id=head.session_id,
        source=head.source,
        created_at=head.created_at,
        catalog_id=catalog_id_of(tools) if catalog_id is None else catalog_id,
        messages=messages,
        turns=turns_of(messages),
        labels=head.labels,
        meta=head.meta,
    )
    if not session.session_id:
        name = content_name(messages, session.catalog_id, head.meta)
        session = msgspec.structs.replace(session, session_id=f"{prefix}{name}")
    check_session(session)
    return session


def content_name(*parts: Any) -> str:
    """16 hex digits of what was recorded (not of labels that the caller lays over)."""
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def mark_errors(messages: tuple[Message, ...], prefixes: tuple[str, ...]) -> tuple[Message, ...]:
    """Tool messages whose text begins with one of ``prefixes``, flagged as errors."""
    if not prefixes or not any(message.role == "tool" for message in messages):
        return messages
    return tuple(
        msgspec.structs.replace(message, is_error=True)
        if message.role == "tool" and not message.is_error and message.text.startswith(prefixes)
        else message
        for message in messages
    )


def import_lines(path: Path, options: ImportOptions, convert: Callable[[bytes, str], Imported]) -> Iterator[Imported]:
    """Run ``convert`` over the lines of a JSON Lines file; bad ones go to ``options.skip``."""
    seen = False
    for number, raw in read_lines(path, on_bytes=options.on_bytes):
        seen = True
        try:
            if isinstance(raw, DataError):
                raise raw
            imported = convert(raw, f"{path}:{number}")
        except DataError as error:
            options.skip.take(error.at(str(path), number))
            continue
        yield imported
    if not seen:
        raise empty_file(path)


def empty_file(path: Path) -> DataError:
    """The error for a file without a record."""
    return DataError("found no record; expected at least one; check that this is the right file", path=str(path))


def load_json_file(path: Path) -> Any:
    """A small JSON file, strictly. Raises ``DataError``."""
    try:
        raw = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise DataError(f"cannot read: {error.strerror}; check the path", path=str(path)) from None
    try:
        return loads_bytes(raw)
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 at byte {error.start}; save the file as UTF-8", path=str(path)) from None
    except JsonProblem as error:
        raise DataError(f"not strict JSON: {error}", path=str(path)) from None


class ToolLists:
    """Tool lists by their wire text: a harness repeats one list in every record, and it is read once."""

    _LIMIT = 256

    def __init__(self, read: Callable[[Any], tuple[Tool, ...]]):
        self._read = read
        self._known: dict[bytes, tuple[tuple[Tool, ...], str]] = {}
        self._last = b""

    def of_text(self, raw: bytes) -> tuple[tuple[Tool, ...], str]:
        """The tools and the catalog id of a wire text. Raises ``DataError``."""
        found = self._known.get(raw)
        if found is None:
            try:
                value = loads_bytes(raw)
            except (JsonProblem, UnicodeDecodeError) as error:
                raise DataError(f"not strict JSON: {error}", field="tools") from None
            found = self.of_value(value)
            if len(self._known) >= self._LIMIT:
                self._known.clear()
            self._known[raw] = found
        return found

    def of_value(self, value: Any) -> tuple[tuple[Tool, ...], str]:
        """The tools and the catalog id of a parsed list. Raises ``DataError``."""
        tools = self._read(value)
        return tools, catalog_id_of(tools)

    def read_line(self, line: bytes) -> ToolsRow:
        """A record's line, its ``tools`` read apart: they are often most of the line, and the same as before.

        The list's text is cut out and a mark put in its place. Only where the parsed record has the mark as its
        ``tools`` was it the right text; otherwise the line is parsed whole. Raises ``DataError``.
        """
        raw = self._last
        start = line.find(raw[:64]) if raw else -1
        if start < 0 or not line.startswith(raw, start):
            raw = tools_text(line)
            start = line.find(raw) if raw else -1
        if start >= 0:
            row = parse_line(line[:start] + _MARK_JSON + line[start + len(raw) :])
            if row.get("tools") == _MARK:
                self._last = raw
                return ToolsRow(row, *self.of_text(raw), raw.decode("utf-8"))
        # No tools, or their text stands in a message as well, before them.
        row = parse_line(line)
        if not row.get("tools"):
            return ToolsRow(row, (), "", None)
        raw = tools_text(line)
        found = self.of_text(raw) if raw else self.of_value(row["tools"])
        return ToolsRow(row, *found, raw.decode("utf-8") or None)


class ToolsRow(NamedTuple):
    """A parsed record; its ``tools`` field may hold a mark instead of the list."""

    row: dict[str, Any]
    tools: tuple[Tool, ...]
    catalog_id: str
    received: str | None
    """The list's wire text, where it was read apart."""


_MARK = "\x00tools are read apart"
_MARK_JSON = b'"\\u0000tools are read apart"'


class _ToolsField(msgspec.Struct):
    tools: msgspec.Raw = msgspec.Raw()


class _RequestField(msgspec.Struct):
    request: _ToolsField


_tools_decoder = msgspec.json.Decoder(_ToolsField)
_request_decoder = msgspec.json.Decoder(_RequestField)


def tools_text(line: bytes, *, of_request: bool = False) -> bytes:
    """The text of the ``tools`` list of a record (or of its ``request``); empty when there is none."""
    try:
        held = _request_decoder.decode(line).request if of_request else _tools_decoder.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return b""
    raw = bytes(held.tools)
    return raw if raw[:1] == b"[" else b""


class OfferedTools(NamedTuple):
    """A tool list, its id, and its wire text where there is one."""

    tools: tuple[Tool, ...] = ()
    catalog_id: str = ""
    received: str | None = None


def default_tools(options: ImportOptions, lists: ToolLists) -> OfferedTools:
    """The tools of ``--tools``, or none. Raises ``DataError`` naming that file."""
    path = options.tools_path
    if path is None:
        return OfferedTools()
    value = load_json_file(path)
    try:
        found = lists.of_value(value)
    except DataError as error:
        raise error.at(str(path)) from None
    return OfferedTools(*found, path.read_bytes().removeprefix(b"\xef\xbb\xbf").strip().decode("utf-8"))
