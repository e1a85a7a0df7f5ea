"""An author: a model that writes one JSON value a stage, read strictly, repaired once, kept word for word.

stage ─► kept already? ─► engine ─► kept ─► strict JSON, form, meaning ─► value
                            ▲                        │ problems
                            └── ONE repair, with the problems listed ◄┘ ─► AuthorFailed
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec

from firstchair.chat.messages import Message, text_message
from firstchair.core.errors import RunFailed, UpstreamError
from firstchair.core.jsonl import read_jsonl
from firstchair.core.jsontext import JsonProblem, content_id, dumps, loads
from firstchair.engines.base import Engine, ErrorKind, Generation, Request, Sampling, Stop

Value = TypeVar("Value")

SAMPLING = Sampling(max_new_tokens=16_384)
"""Rows and tasks are long."""

_SHOWN = 12
"""Problems that a repair lists."""
_RETRYABLE = frozenset({ErrorKind.RATE_LIMITED, ErrorKind.TIMEOUT, ErrorKind.CONNECTION, ErrorKind.SERVER})


class Why(StrEnum):
    """Why what an author wrote cannot be used."""

    EMPTY = "empty"
    TRUNCATED = "truncated"
    REFUSED = "refused"
    BAD_JSON = "bad_json"
    BAD_SCHEMA = "bad_schema"
    """JSON, but not of the stage's schema."""
    INVALID = "invalid"
    """Of the schema, and still wrong: SQL that does not run, rows that refer to nothing, …"""


class AuthorFailed(RunFailed):
    """A stage that could not be used, its repair included."""

    def __init__(self, stage: str, why: Why, problems: Sequence[str]):
        self.stage, self.why, self.problems = stage, why, tuple(problems)
        shown = "; ".join(self.problems[:3])
        super().__init__(
            f"author: {stage}: {why} after one repair: {shown}; all that was written is kept; run again at another "
            "temperature or with a stronger author"
        )


@dataclass(frozen=True)
class Stage(Generic[Value]):
    """One thing to write."""

    name: str
    messages: tuple[Message, ...]
    type: type[Value]
    check: Callable[[Value], Sequence[str]]
    """What is wrong with a value of that type."""
    tolerant: bool = False
    """A value that is still wrong after its repair is used: what is wrong in it is dropped later, with its reason."""


@dataclass(frozen=True)
class _Read(Generic[Value]):
    """What came of reading one reply."""

    value: Value | None
    why: Why | None
    problems: tuple[str, ...] = ()


class AuthorLog:
    """Everything that an author wrote, one JSON line a reply; what stands there is not asked for again.

    ``path=None`` keeps nothing beyond the process.
    """

    def __init__(self, path: Path | None = None):
        self._path = path
        self.rows: list[dict[str, Any]] = read_log(path) if path is not None else []
        self._texts = {row["asked"]: row for row in self.rows}

    def get(self, asked: str) -> dict[str, Any] | None:
        """The reply to a question that was asked before."""
        return self._texts.get(asked)

    def add(self, row: dict[str, Any]) -> None:
        """Keep a reply."""
        self.rows.append(row)
        self._texts[row["asked"]] = row
        if self._path is not None:
            append_log(self._path, row)


@dataclass
class Author:
    """A model that writes. ``repaired`` counts the repairs it was asked for."""

    engine: Engine
    log: AuthorLog = field(default_factory=AuthorLog)
    sampling: Sampling = SAMPLING
    repaired: int = 0

    async def write(self, stage: Stage[Value]) -> Value:
        """The value of a stage.

        Raises ``AuthorFailed`` when neither reply can be used, ``UpstreamError`` when the engine fails.
        """
        text, first = await self._attempt(stage, stage.messages, 0)
        if first.value is not None and not first.problems:
            return first.value
        self.repaired += 1
        _, second = await self._attempt(stage, _repair(stage, text, first), 1)
        if second.value is not None and (stage.tolerant or not second.problems):
            return second.value
        if stage.tolerant and first.value is not None:
            return first.value
        raise AuthorFailed(stage.name, second.why or Why.INVALID, second.problems)

    async def _attempt(
        self, stage: Stage[Value], messages: tuple[Message, ...], attempt: int
    ) -> tuple[str, _Read[Value]]:
        schema = schema_of(stage.type)
        asked = content_id(
            [
                self.engine.info().model,
                msgspec.to_builtins(messages),
                schema,
                msgspec.to_builtins(self.sampling),
            ]
        )
        row = self.log.get(asked)
        if row is None:
            said = await self._generate(f"{stage.name}:{attempt}", messages, schema)
            text = said.message.text if said.message is not None else said.text
            row = {"asked": asked, "stage": stage.name, "attempt": attempt, "stop": str(said.stop), "text": text}
            read = _read(stage, text, said.stop)
            self.log.add({**row, "why": read.why and str(read.why), "problems": list(read.problems)})
            return text, read
        return row["text"], _read(stage, row["text"], Stop(row["stop"]))

    async def _generate(self, request_id: str, messages: tuple[Message, ...], schema: dict[str, Any]) -> Generation:
        request = Request(request_id=request_id, messages=messages, sampling=self.sampling, json_schema=schema)
        async with aclosing(cast("AsyncGenerator[Generation]", self.engine.generate([request]))) as generations:
            said = await anext(generations)
        if said.stop in (Stop.ERROR, Stop.CANCELLED):
            retryable = said.error_kind in _RETRYABLE
            kept = f"{'run again: ' if retryable else ''}what was written before is kept"
            raise UpstreamError(f"author: {request_id}: {said.error or said.stop}; {kept}", retryable=retryable)
        return said


def schema_of(kind: type[Any]) -> dict[str, Any]:
    """The JSON Schema that a value of ``kind`` has, as servers are asked for it."""
    schema = msgspec.json.schema(kind)
    # Servers want an object at the root, not a reference to one.
    root = schema["$defs"].pop(schema["$ref"].rpartition("/")[2])
    return {**root, "$defs": schema["$defs"]}


def _read(stage: Stage[Value], text: str, stop: Stop) -> _Read[Value]:
    if stop is Stop.REFUSAL:
        return _Read(None, Why.REFUSED, (text[:200],))
    if stop is Stop.LENGTH:
        return _Read(None, Why.TRUNCATED, ("the reply was cut at its length limit; write less",))
    if not text.strip():
        return _Read(None, Why.EMPTY, ("the reply was empty",))
    try:
        value = msgspec.convert(loads(text), stage.type)
    except JsonProblem as error:
        return _Read(None, Why.BAD_JSON, (f"it is not one JSON value: {error}",))
    except msgspec.ValidationError as error:
        return _Read(None, Why.BAD_SCHEMA, (str(error),))
    problems = tuple(stage.check(value))
    return _Read(value, Why.INVALID if problems else None, problems)


def _repair(stage: Stage[Any], text: str, read: _Read[Any]) -> tuple[Message, ...]:
    """The question with the reply behind it, and what is wrong with that."""
    listed = "\n".join(f"- {problem}" for problem in read.problems[:_SHOWN])
    more = len(read.problems) - _SHOWN
    if more > 0:
        listed += f"\n- and {more} more"
    again = (
        f"This cannot be used ({read.why}):\n{listed}\n"
        "Write the whole of it again with nothing of this wrong, as one JSON value and nothing else. Its schema: "
        f"{dumps(schema_of(stage.type))}"
    )
    return (*stage.messages, text_message("assistant", text or "(nothing)"), text_message("user", again))


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rows of a file that ``append_log`` writes; none when there is none.

    A last line without its end is what a killed process left: it is cut off.
    """
    if not path.exists():
        return []
    with path.open("r+b") as file:
        whole = file.read()
        file.truncate(whole.rfind(b"\n") + 1)
    return [row for _, row in read_jsonl(path)]


def append_log(path: Path, row: Any) -> None:
    """Put a row behind those that are there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(dumps(row) + "\n")
