"""From recorded model calls to sessions: calls that extend one another are one conversation, all else branches.

    call 1: [s u]           → a1          branch 0: s u a1 t1 a2
    call 2: [s u a1 t1]     → a2
    call 3: [s summary u]   → a3          branch 1: s summary u a3      (the harness rewrote its history)
    call 4: [s2 task]       → b1          branch 2: s2 task b1          (a sub-agent)

A call joins the longest branch that is an exact prefix of its prompt, message by message and, where the engine told
its token ids, id by id (a template that drops earlier reasoning shows the model another conversation). Each model
action is counted once: what stands in a branch's first prompt is its context (``Session.context_end``), never its
decisions.
A reply that the token limit cut or a filter stopped is marked as such: it must not pass for the model's own stop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from firstchair.chat.anthropic_blocks import carried_text
from firstchair.chat.messages import REFUSED, TRUNCATED, UNFINISHED, Message, TextPart, ToolCall
from firstchair.traces.session import ModelCall, Session, Source, turns_of


class RecordedCall(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One request to a model and what came back."""

    prompt: tuple[Message, ...]
    reply: tuple[Message, ...] = ()
    """None when the call failed."""
    catalog_id: str = ""
    call: ModelCall
    created_at: str = ""
    meta: dict[str, Any] = {}


class Branch(msgspec.Struct):
    """A conversation as far as it has been put together."""

    messages: tuple[Message, ...]
    keys: list[Any]
    catalog_id: str
    context_end: int
    created_at: str
    calls: list[ModelCall]
    meta: dict[str, Any]
    ids: tuple[int, ...] = ()
    """What the engine had read and written at the last call that says so."""


def message_key(message: Message) -> Any:
    """What makes two recordings of a message the same: everything a model is shown, arguments as values.

    A reply and its echo in the next prompt may differ in argument spacing and in provider fields beside, and
    malformed arguments may come back carried in an object (``chat.openai_calls.replayable``).
    """
    content = [
        (part.text,) if isinstance(part, TextPart) else (type(part).__name__, msgspec.json.encode(part))
        for part in message.content
    ]
    calls = [(call.id, call.name, _arguments_key(call)) for call in message.tool_calls]
    return (message.role, content, calls, message.tool_call_id)


def _arguments_key(call: ToolCall) -> Any:
    parsed = call.parsed()
    if parsed is None:
        return call.arguments
    text = carried_text(parsed)
    # Through repr, because 1, 1.0 and True are equal to Python and different to a model.
    return repr(sorted(parsed.items())) if text is None else text


def merge_calls(calls: Iterable[RecordedCall]) -> list[Branch]:
    """Put calls, in order of time, together into branches, in order of their first call."""
    branches: list[Branch] = []
    for call in calls:
        prompt_keys = [message_key(message) for message in call.prompt]
        branch = _longest_prefix(branches, prompt_keys, call)
        if branch is None:
            branch = open_branch(call)
            branches.append(branch)
        extend_branch(branch, call, prompt_keys, [message_key(message) for message in call.reply])
    return branches


def open_branch(call: RecordedCall) -> Branch:
    """A branch that begins with ``call``, which is still to be put into it."""
    return Branch((), [], call.catalog_id, len(call.prompt), call.created_at, [], {})


def extend_branch(branch: Branch, call: RecordedCall, prompt_keys: list[Any], reply_keys: list[Any]) -> None:
    """Put ``call``, whose prompt begins with the whole of ``branch``, into it. One key a message."""
    # Earlier messages keep the text of their first recording.
    branch.messages += call.prompt[len(branch.messages) :]
    index = len(branch.messages) if call.reply else None
    branch.calls.append(msgspec.structs.replace(call.call, message_index=index))
    branch.messages += tuple(_with_ending(message, call.call) for message in call.reply)
    branch.keys = [*branch.keys, *prompt_keys[len(branch.keys) :], *reply_keys]
    branch.meta = {**call.meta, **branch.meta}
    if (tokens := call.call.tokens) is not None:
        branch.ids = tokens.prompt_ids + tokens.completion_ids


def continues_ids(branch: Branch, call: RecordedCall) -> bool:
    """Whether the engine read at ``call`` what it had read and written in ``branch``, as far as it says."""
    tokens = call.call.tokens
    return tokens is None or tokens.prompt_ids[: len(branch.ids)] == branch.ids


ENDING_OF: Mapping[str, str] = MappingProxyType(
    {
        "length": TRUNCATED,
        "max_tokens": TRUNCATED,
        "max_output_tokens": TRUNCATED,
        "model_context_window_exceeded": TRUNCATED,
        "content_filter": REFUSED,
        "refusal": REFUSED,
        "safety": REFUSED,
        "recitation": REFUSED,
        "blocklist": REFUSED,
        "prohibited_content": REFUSED,
        "context_window": TRUNCATED,
        "pause_turn": UNFINISHED,
        "pause": UNFINISHED,
        "error": UNFINISHED,
        "abort": UNFINISHED,
        "cancelled": UNFINISHED,
    }
)
"""The providers' words for an answer that is no stop → its mark. Any other word is one for a stop."""


def _with_ending(message: Message, call: ModelCall) -> Message:
    mark = ENDING_OF.get((call.finish_reason or "").lower()) or (UNFINISHED if call.error is not None else None)
    if mark is None or message.role != "assistant":
        return message
    return msgspec.structs.replace(message, extra={**message.extra, mark: True})


def _longest_prefix(branches: list[Branch], keys: list[Any], call: RecordedCall) -> Branch | None:
    best: Branch | None = None
    for branch in branches:
        size = len(branch.keys)
        if (
            branch.catalog_id == call.catalog_id
            and size <= len(keys)
            and (best is None or size > len(best.keys))
            and keys[:size] == branch.keys
            and continues_ids(branch, call)
        ):
            best = branch
    return best


def branch_sessions(
    branches: list[Branch], *, session_id: str, source: Source, labels: dict[str, Any]
) -> Iterator[Session]:
    """Sessions of ``branches``: the first is ``session_id``, later ones ``session_id#1``, ``#2``."""
    for number, branch in enumerate(branches):
        name = f"{session_id}#{number}" if number else session_id
        yield branch_session(
            branch, session_id=name, source=source, labels=labels, branch_of=session_id if number else ""
        )


def branch_session(
    branch: Branch, *, session_id: str, source: Source, labels: dict[str, Any], branch_of: str = ""
) -> Session:
    """``branch`` as a session; ``branch_of``: the session that it has branched off."""
    has_history = any(message.role == "assistant" for message in branch.messages[: branch.context_end])
    return Session(
        session_id=session_id,
        source=source,
        created_at=branch.created_at,
        catalog_id=branch.catalog_id,
        messages=branch.messages,
        turns=turns_of(branch.messages),
        calls=tuple(branch.calls),
        labels=labels,
        meta={**branch.meta, "branch_of": branch_of} if branch_of else dict(branch.meta),
        context_end=branch.context_end if has_history else 0,
    )
