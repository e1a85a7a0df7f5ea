"""SFT records: one recorded session a line, and for each assistant message whether it is trained.

A line is ``{id, source, messages: [{role, content, tool_calls?, …, loss}], tools, meta}``. Reading also takes
OpenAI messages and the ``conversations`` form (``from``/``value``). A mistake that a reviewer found stays in the
context, where it happened, and leaves the loss; the story of the session is never rewritten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from firstchair.chat.messages import Message, Tool
from firstchair.chat.openai_wire import messages_to_openai, tools_to_openai
from firstchair.chat.token_conversation import TokenConversation
from firstchair.core.errors import DataError
from firstchair.core.jsonl import SkipBad, read_jsonl, write_jsonl
from firstchair.data.corrections import Correction, apply_corrections, same_action
from firstchair.data.message_rows import messages_from_rows, messages_to_rows, tools_from_rows
from firstchair.traces.checks import check_pairing
from firstchair.traces.decisions import DecisionPoint, decision_points
from firstchair.traces.session import Session, turns_of


class ConversationRenderer(Protocol):
    """The part of ``chat.renderer.Renderer`` that records need."""

    def conversation(
        self, messages: Sequence[Message], tools: Sequence[Tool], loss: Sequence[bool] | None = None
    ) -> TokenConversation:
        """The messages as tokens, with the loss mask of the switched-on ones."""
        ...


LossPolicy = Literal["all", "verified"]


BRANCH = "#gold"
"""Ends the id of a record that teaches one correction: ``<dp_id>#gold``."""


class SftRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation to learn from."""

    id: str
    source: str = ""
    messages: tuple[Message, ...]
    loss: tuple[bool, ...]
    """One per message; True only on assistant messages. The end-of-turn token is trained with its message."""
    tools: tuple[Tool, ...] = ()
    meta: dict[str, Any] = {}
    """``category, tier, wave, num_turns, n_tool_calls, n_assistant_spans, n_trained_spans``, and the labels."""

    def __post_init__(self) -> None:
        if len(self.loss) != len(self.messages):
            raise DataError(f"{len(self.loss)} flags for {len(self.messages)} messages; one each", field="loss")
        for index, (message, trained) in enumerate(zip(self.messages, self.loss, strict=True)):
            if trained and message.role != "assistant":
                raise DataError(
                    f"true on a {message.role} message; only assistant messages are trained",
                    field=f"messages[{index}].loss",
                )

    @property
    def trained_spans(self) -> int:
        """How many assistant messages are trained."""
        return sum(self.loss)

    def to_conversation(self, renderer: ConversationRenderer) -> TokenConversation:
        """The record as tokens, byte for byte the prompt that serving sends, with its loss mask."""
        return renderer.conversation(self.messages, self.tools, loss=self.loss)

    def to_row(self, *, openai: bool = False) -> dict[str, Any]:
        """The JSON object of the record; with ``openai`` its messages and tools in the form of Chat Completions."""
        rows = messages_to_openai(self.messages) if openai else messages_to_rows(self.messages)
        return {
            "id": self.id,
            "source": self.source,
            "messages": [{**row, "loss": trained} for row, trained in zip(rows, self.loss, strict=True)],
            "tools": tools_to_openai(self.tools) if openai else msgspec.to_builtins(self.tools),
            "meta": self.meta,
        }


@dataclass(frozen=True)
class SftOptions:
    """Which spans are trained, and what the records say about themselves."""

    loss: LossPolicy = "all"
    """``all``: every assistant message but the corrected, the malformed and the unfinished ones. ``verified``: of
    these only the ones that a reviewer confirmed or corrected to what stands there."""
    branches: bool = False
    """Beside a corrected session, one more record for each correction: the context up to the mistake and then the
    right action, the only trained message. Nothing follows it, so no story breaks."""
    category: str = ""
    tier: str = ""
    wave: str = ""


def sft_records(
    sessions: Iterable[Session],
    tools: Callable[[str], tuple[Tool, ...]],
    options: SftOptions = SftOptions(),
    *,
    corrections: Sequence[Correction] = (),
    left_out: list[str] | None = None,
) -> Iterator[SftRecord]:
    """Records for ``sessions``, in order. ``tools`` gives the tools of a catalog id.

    Out of the loss: assistant messages that a correction changed, those with a malformed call (arguments that are no
    JSON object), and those that the model did not end itself (cut, refused): none should be learnt. A session
    without any trained message is not yielded; its id goes to ``left_out``. Corrections of other sessions are passed
    over. Raises ``DataError`` for one that does not fit.
    """
    by_session: dict[str, list[Correction]] = defaultdict(list)
    for correction in corrections:
        by_session[correction.session_id].append(correction)
    for session in sessions:
        own = apply_corrections(decision_points(session), by_session.get(session.session_id, ()))
        offered = tools(session.catalog_id)
        loss = loss_flags(session, own, options.loss)
        if any(loss):
            yield _record(session, session.session_id, session.messages, loss, offered, options)
        elif left_out is not None:
            left_out.append(session.session_id)
        if options.branches:
            yield from _branches(session, own, offered, options)


def loss_flags(session: Session, decisions: Iterable[DecisionPoint], policy: LossPolicy = "all") -> tuple[bool, ...]:
    """For each message of ``session`` whether it is trained, given its decisions with corrections applied."""
    flags = [False] * len(session.messages)
    for decision in decisions:
        right = decision.gold is None or same_action(decision.gold, decision.observed)
        well_formed = all(call.parsed() is not None for call in decision.observed.calls)
        whole = decision.ending is None
        flags[decision.context_end] = right and well_formed and whole and (policy == "all" or decision.verified)
    return tuple(flags)


def _branches(
    session: Session, decisions: Iterable[DecisionPoint], tools: tuple[Tool, ...], options: SftOptions
) -> Iterator[SftRecord]:
    for decision in decisions:
        if decision.gold is None or same_action(decision.gold, decision.observed):
            continue
        messages = (*session.messages[: decision.context_end], decision.gold.to_message())
        loss = (*(False for _ in range(decision.context_end)), True)
        yield _record(session, f"{decision.dp_id}{BRANCH}", messages, loss, tools, options)


def _record(
    session: Session,
    record_id: str,
    messages: tuple[Message, ...],
    loss: tuple[bool, ...],
    tools: tuple[Tool, ...],
    options: SftOptions,
) -> SftRecord:
    labels = session.labels
    meta = {
        "category": options.category or labels.get("category", ""),
        "tier": options.tier or labels.get("tier", ""),
        "wave": options.wave or labels.get("wave", ""),
        "num_turns": len(turns_of(messages)),
        "n_tool_calls": sum(len(message.tool_calls) for message in messages),
        "n_assistant_spans": sum(message.role == "assistant" for message in messages),
        "n_trained_spans": sum(loss),
        "labels": labels,
    }
    return SftRecord(id=record_id, source=session.source, messages=messages, loss=loss, tools=tools, meta=meta)


class SftCounts(msgspec.Struct, kw_only=True):
    """What was written."""

    records: int = 0
    branches: int = 0
    assistant_spans: int = 0
    trained_spans: int = 0
    tool_calls: int = 0


def write_sft(
    path: Path, records: Iterable[SftRecord], *, openai: bool = False, force: bool = False, if_none: str = ""
) -> SftCounts:
    """Write records, one a line, atomically; returns the counts. Raises ``DataError`` when there is none, with what
    to do ``if_none``.

    ``openai`` writes the form that other trainers read; signatures of thinking and other parts that it has no place
    for are then lost.
    """
    counts = SftCounts()

    def rows() -> Iterator[dict[str, Any]]:
        for record in records:
            counts.records += 1
            counts.branches += record.id.endswith(BRANCH)
            counts.assistant_spans += sum(message.role == "assistant" for message in record.messages)
            counts.trained_spans += record.trained_spans
            counts.tool_calls += sum(len(message.tool_calls) for message in record.messages)
            yield record.to_row(openai=openai)
        if not counts.records:
            raise DataError(f"no record with a trained message{if_none and '; '}{if_none}")

    write_jsonl(path, rows(), force=force)
    return counts


def read_sft(path: Path, *, skip: SkipBad | None = None) -> Iterator[SftRecord]:
    """Stream the records of a file. A bad line raises ``DataError`` (file, line, field), or goes to ``skip``."""
    skip = skip or SkipBad()
    for number, row in read_jsonl(path, skip=skip):
        try:
            yield record_from_row(row, default_id=f"{path.name}:{number}")
        except DataError as error:
            skip.take(error.at(str(path), number))


def record_from_row(row: dict[str, Any], *, default_id: str = "") -> SftRecord:
    """One JSON object as a record; ``loss`` left out means every assistant message. Raises ``DataError``."""
    messages, flags = messages_from_rows(row)
    loss = tuple(
        message.role == "assistant" if flag is None else flag for message, flag in zip(messages, flags, strict=True)
    )
    check_pairing(messages)
    if not any(message.role == "assistant" for message in messages):
        raise DataError("no assistant message, so nothing to learn", field="messages")
    record_id, source, meta = row.get("id", default_id), row.get("source", ""), row.get("meta", {})
    for field, value, kind in (("id", record_id, str), ("source", source, str), ("meta", meta, dict)):
        if not isinstance(value, kind):
            raise DataError(f"found {type(value).__name__}; expected {kind.__name__}", field=field)
    tools = tools_from_rows(row.get("tools"))
    return SftRecord(id=record_id, source=source, messages=messages, loss=loss, tools=tools, meta=meta)
