"""From finished calls, one by one as they come, to the sessions that they make up.

    CallRecord ─ prompt read by its dialect ─▶ a key for every prefix of the prompt
                    └▶ the open branch whose end is the longest of these prefixes, else a session stored earlier,
                       else a new branch ─▶ … ─▶ ``due`` when idle, old, or too many ─▶ the trace store

What joins what is said in ``firstchair.traces.branches``; here each branch is found by the key of its end, so a call
costs its own prompt and nothing more, however long or many the sessions are. A branch that is not open goes on from
the trace store, by the same key, kept there when it was written.

Calls with a session header join only calls with the same one: the first branch bears its name, others that name and
the id of their first call. Without it a session bears the id of its first call, and joins only calls of the same
API key and user. Names follow from the calls alone, so that stitching the same calls again, after a crash, writes
the same sessions.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import msgspec

from firstchair.catalog.token_counts import NANO, TokenCounts
from firstchair.chat.messages import Message, Tool
from firstchair.core.errors import BadRequest, DataError
from firstchair.core.ids import safe_id
from firstchair.core.jsontext import JsonProblem, loads_bytes
from firstchair.gateway.dialects.base import ChatRequest, DialectName
from firstchair.gateway.records import CallRecord, Outcome
from firstchair.traces.branches import (
    Branch,
    RecordedCall,
    branch_session,
    continues_ids,
    extend_branch,
    message_key,
    open_branch,
)
from firstchair.traces.session import CallTokens, ModelCall, Session, Usage, catalog_id_of
from firstchair.traces.times import utc_text

Readers = Mapping[DialectName, Callable[[Mapping[str, Any]], ChatRequest]]
"""``Dialect.read_request`` by dialect."""

IDLE_S = 60.0
MAX_UNSAVED_S = 300.0
MAX_BRANCHES = 10_000
MAX_BYTES = 256 * 1024 * 1024
_BYTES_OF_MESSAGE = 600
"""Of memory beside its text: the objects that it is made of, its key."""
_BYTES_OF_TOKEN = 40
"""Of memory: an id, or a logprob."""
_MAX_REQUEST_DEPTH = 256


class NotStitched(Exception):
    """A call that is part of no session; the message is the reason, in few words for counting."""


class Stored(NamedTuple):
    """A session as the trace store has it."""

    session: Session
    tools: tuple[Tool, ...]


class Earlier(Protocol):
    """What was written before: the sessions that are not open here."""

    def sessions_ending(self, ends: Sequence[str]) -> dict[str, list[str]]:
        """Of ``ends``, those at which sessions end, and which."""

    def load(self, session_id: str) -> Stored | None: ...

    def claim(self, session_id: str) -> bool:
        """Whether the name of a session header is free or ours, and no branch of that name has been written yet."""


class Stitched(NamedTuple):
    """A session to write."""

    session: Session
    tools: tuple[Tool, ...]
    end: str
    """The key to find it by when it goes on."""
    call_ids: tuple[str, ...]
    """The calls in it that it was not yet written with."""


@dataclass
class _Open:
    """A branch that may go on."""

    session_id: str
    branch_of: str
    branch: Branch
    tools: tuple[Tool, ...]
    labels: dict[str, Any]
    touched_us: int
    unsaved: list[str] = field(default_factory=list)
    unsaved_since_us: int = 0
    size: int = 0

    @property
    def end(self) -> str:
        return str(self.branch.keys[-1])


class ReadCall(NamedTuple):
    """A record read for stitching."""

    record: CallRecord
    call: RecordedCall
    keys: list[str]
    reply_keys: list[str]
    tools: tuple[Tool, ...]
    size: int
    """Bytes of memory that the prompt takes, about."""

    @property
    def ends(self) -> list[str]:
        """Where a branch may end that the prompt goes on from, the longest first.

        None ends before the last answer in the prompt: an answer that a branch has no call for came from elsewhere,
        and must be a new branch's context, not this one's decision.
        """
        answers = (index for index, message in enumerate(self.call.prompt) if message.role == "assistant")
        return self.keys[max(answers, default=0) :][::-1]


class Stitcher:
    """The open branches of one recorder. Not shared between threads."""

    def __init__(
        self,
        readers: Readers,
        earlier: Earlier,
        *,
        idle_s: float = IDLE_S,
        max_unsaved_s: float = MAX_UNSAVED_S,
        max_branches: int = MAX_BRANCHES,
        max_bytes: int = MAX_BYTES,
    ):
        """A branch is written ``idle_s`` after its last call, at the latest ``max_unsaved_s`` after the first call
        that it was not written with, and earlier, the oldest first, when there are more than ``max_branches`` or they
        take more memory than about ``max_bytes``.
        """
        self._readers, self._earlier = readers, earlier
        self._idle_us, self._max_unsaved_us = int(idle_s * 1e6), int(max_unsaved_s * 1e6)
        self._max_branches, self._max_bytes = max_branches, max_bytes
        self._open: OrderedDict[str, _Open] = OrderedDict()  # by session id; the least recently used first
        self._by_end: dict[str, list[_Open]] = {}
        self._bytes = 0
        self._replayed: set[str] = set()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def unsaved(self) -> int:
        """Calls that no written session holds yet."""
        return sum(len(item.unsaved) for item in self._open.values())

    def replaying(self, call_ids: Collection[str]) -> None:
        """Say, after a restart, which calls are about to be added again: a stored session that holds one of them
        is taken as it was before it.
        """
        self._replayed = set(call_ids)

    def add(self, record: CallRecord, body: bytes, now_us: int) -> str:
        """Put one call where it belongs; the id of its session. ``body``: the request's bytes.

        Raises ``NotStitched`` for one that belongs nowhere; what ``earlier`` raises leaves everything as it was.
        """
        call = self.read(record, body)
        return self.place(call, self.stored_ends([call]), now_us)

    def read(self, record: CallRecord, body: bytes) -> ReadCall:
        """The first half of ``add``, which asks and changes nothing. Raises ``NotStitched``."""
        if record.variant == "shadow":
            raise NotStitched("shadow")
        if record.outcome is Outcome.REFUSED:
            raise NotStitched("refused")
        if not body:
            raise NotStitched("no request")
        scope = ("session", record.session) if record.session else ("prefix", record.key_id, record.user)
        try:
            value = loads_bytes(body, max_depth=_MAX_REQUEST_DEPTH)
            if not isinstance(value, dict):
                raise NotStitched("unreadable request")
            request = self._readers[record.dialect](value)
        except (BadRequest, DataError, JsonProblem, UnicodeDecodeError):
            raise NotStitched("unreadable request") from None
        if not request.messages:
            raise NotStitched("no messages")
        recorded = recorded_call(record, request)
        seed = _digest(b"", (*scope, recorded.catalog_id))
        keys = chain(seed, recorded.prompt)
        reply_keys = chain(bytes.fromhex(keys[-1]), recorded.reply)
        size = len(body) + _BYTES_OF_MESSAGE * len(recorded.prompt)
        return ReadCall(record, recorded, keys, reply_keys, request.tools, size)

    def stored_ends(self, calls: Sequence[ReadCall]) -> dict[str, list[str]]:
        """The stored sessions that ``calls`` might go on from, by the key of their end; one question for them all.

        The answer holds until something is written.
        """
        ends = {end: None for call in calls for end in call.ends}
        return self._earlier.sessions_ending(list(ends)) if ends else {}

    def place(self, call: ReadCall, stored: Mapping[str, Sequence[str]], now_us: int) -> str:
        """The second half of ``add``; ``stored`` is what ``stored_ends`` said of this call, among others."""
        record = call.record
        found = self._find(call, stored) or self._new(record, call)
        self._forget_end(found)
        found.labels = _labels(record, found.labels)
        extend_branch(found.branch, call.call, call.keys, call.reply_keys)
        if record.dropped:
            listed = (*found.branch.meta.get("dropped", ()), *record.dropped)
            found.branch.meta["dropped"] = list(dict.fromkeys(listed))
        size = call.size + sum(map(_size_of_tokens, found.branch.calls))
        self._bytes += size - found.size
        found.size, found.touched_us = size, now_us
        if not found.unsaved:
            found.unsaved_since_us = now_us
        found.unsaved.append(record.call_id)
        self._by_end.setdefault(found.end, []).append(found)
        self._open[found.session_id] = found
        self._open.move_to_end(found.session_id)
        self._replayed.discard(record.call_id)
        return found.session_id

    def due(self, now_us: int, *, everything: bool = False) -> list[Stitched]:
        """The sessions to write now. They stay open until ``saved`` says that they are."""
        spare = len(self._open) - self._max_branches
        extra_bytes = self._bytes - self._max_bytes
        found = []
        for item in list(self._open.values()):
            over = spare > 0 or extra_bytes > 0
            idle = now_us - item.touched_us >= self._idle_us
            old = bool(item.unsaved) and now_us - item.unsaved_since_us >= self._max_unsaved_us
            if not (everything or over or idle or old):
                continue
            spare -= 1
            extra_bytes -= item.size
            if item.unsaved:
                found.append(self._stitched(item))
            else:
                self._close(item)
        return found

    def saved(self, written: Stitched, now_us: int) -> None:
        """``written`` is in the store: branches that are idle or too many are closed, others stay open."""
        item = self._open.get(written.session.session_id)
        if item is None:
            return
        gone = set(written.call_ids)
        item.unsaved = [call_id for call_id in item.unsaved if call_id not in gone]
        item.unsaved_since_us = now_us
        too_many = len(self._open) > self._max_branches or self._bytes > self._max_bytes
        if not item.unsaved and (too_many or now_us - item.touched_us >= self._idle_us):
            self._close(item)

    def drop(self, written: Stitched) -> None:
        """Close a branch that cannot be written."""
        item = self._open.get(written.session.session_id)
        if item is not None:
            self._close(item)

    def _close(self, item: _Open) -> None:
        del self._open[item.session_id]
        self._bytes -= item.size
        self._forget_end(item)

    def _forget_end(self, item: _Open) -> None:
        if not item.branch.keys:
            return
        others = [other for other in self._by_end.get(item.end, ()) if other is not item]
        if others:
            self._by_end[item.end] = others
        else:
            self._by_end.pop(item.end, None)

    def _stitched(self, item: _Open) -> Stitched:
        session = branch_session(
            item.branch,
            session_id=item.session_id,
            source="production",
            labels=item.labels,
            branch_of=item.branch_of,
        )
        return Stitched(session, item.tools, item.end, tuple(item.unsaved))

    def _find(self, call: ReadCall, stored: Mapping[str, Sequence[str]]) -> _Open | None:
        """The longest branch that the prompt goes on from: an open one, else a stored one."""
        ends = call.ends
        for end in ends:
            for item in self._by_end.get(end, ()):
                if continues_ids(item.branch, call.call):
                    return item
        for end in ends:
            for session_id in stored.get(end, ()):
                session = None if session_id in self._open else self._earlier.load(session_id)
                reopened = None if session is None else self._reopened(session, end, call)
                if reopened is not None and continues_ids(reopened.branch, call.call):
                    return reopened
        return None

    def _reopened(self, stored: Stored, end: str, call: ReadCall) -> _Open | None:
        """A stored session as far as ``end``; ``None`` when it is not what it was when the key was kept."""
        session = stored.session
        size = call.keys.index(end) + 1
        # The keys of the prompt are the right ones only if the messages are the same.
        same = [message_key(message) for message in session.messages[:size]]
        if len(same) < size or same != [message_key(message) for message in call.call.prompt[:size]]:
            return None
        calls = [
            made
            for made in session.calls
            if made.call_id not in self._replayed and (made.message_index is None or made.message_index < size)
        ]
        tokens = next((made.tokens for made in reversed(calls) if made.tokens is not None), None)
        meta = dict(session.meta)
        branch_of = str(meta.pop("branch_of", ""))
        branch = Branch(
            messages=session.messages[:size],
            keys=list(call.keys[:size]),
            catalog_id=session.catalog_id,
            context_end=session.context_end,
            created_at=session.created_at,
            calls=calls,
            meta=meta,
            ids=() if tokens is None else tokens.prompt_ids + tokens.completion_ids,
        )
        return _Open(session.session_id, branch_of, branch, stored.tools, dict(session.labels), 0)

    def _new(self, record: CallRecord, call: ReadCall) -> _Open:
        session_id, branch_of = safe_id(record.call_id), ""
        if record.session:
            name = _session_name(record.session)
            if name not in self._open and self._earlier.claim(name):
                session_id = name
            else:
                session_id, branch_of = f"{name}#{session_id}", name
        return _Open(session_id, branch_of, open_branch(call.call), call.tools, {}, 0)


def _session_name(header: str) -> str:
    """A session header as an id. One that is none is known by its hash, so that two never become one."""
    name = safe_id(header)
    return name if name == header else f"{name[:180]}-{hashlib.sha256(header.encode()).hexdigest()[:16]}".lstrip("-")


def _size_of_tokens(call: ModelCall) -> int:
    if call.tokens is None:
        return 0
    return _BYTES_OF_TOKEN * (len(call.tokens.prompt_ids) + 2 * len(call.tokens.completion_ids))


def _digest(before: bytes, value: Any) -> bytes:
    return hashlib.sha256(before + msgspec.msgpack.encode(value)).digest()


def chain(seed: bytes, messages: Sequence[Message]) -> list[str]:
    """A key for every prefix of ``messages``: equal keys, equal prefixes (of branches with an equal ``seed``)."""
    keys = []
    for message in messages:
        seed = _digest(seed, message_key(message))
        keys.append(seed.hex())
    return keys


def recorded_call(record: CallRecord, request: ChatRequest) -> RecordedCall:
    """A record as the branches know it: the prompt that was read, the answer as far as it came."""
    answer = record.answer
    ended_well = record.outcome is Outcome.OK or (record.outcome is Outcome.CLIENT_DISCONNECTED and record.finish)
    has_reply = answer is not None and (bool(answer.content or answer.tool_calls) or bool(ended_well))
    error = None if ended_well else (record.failure.value if record.failure is not None else record.outcome.value)
    usage = record.usage or TokenCounts()
    tokens, has_bad_tokens = _tokens(record)
    started = utc_text(record.received_us)
    meta = {"dialect": record.dialect, "requested_model": record.requested_model, **_parameters(request)}
    if has_bad_tokens:
        meta["tokens_left_out"] = record.call_id
    return RecordedCall(
        prompt=request.messages,
        reply=(answer,) if has_reply and answer is not None else (),
        catalog_id=_catalog_id(request.tools),
        created_at=started,
        call=ModelCall(
            call_id=record.call_id,
            slot=record.slot,
            provider=record.provider,
            model=record.response_model or record.provider_model,
            started_at=started,
            latency_ms=record.latency_ms,
            ttft_ms=record.ttft_ms,
            usage=Usage(
                input=usage.input,
                output=usage.output,
                cache_read=usage.cache_read,
                cache_write=usage.cache_write_5m + usage.cache_write_1h,
            ),
            cost_usd=None if record.cost_nano is None else record.cost_nano / NANO,
            error=error,
            finish_reason=(record.native_finish or record.finish) or None,
            tokens=tokens if has_reply else None,
        ),
        meta=meta,
    )


def _catalog_id(tools: tuple[Tool, ...]) -> str:
    """``catalog_id_of``, remembered: a harness offers the same tools on every call."""
    try:
        return _id_of_text(msgspec.msgpack.encode(tools))
    except (OverflowError, msgspec.MsgspecError, UnicodeEncodeError):
        return catalog_id_of(tools)


@lru_cache(64)
def _id_of_text(text: bytes) -> str:
    return catalog_id_of(msgspec.msgpack.decode(text, type=tuple[Tool, ...]))


def _tokens(record: CallRecord) -> tuple[CallTokens | None, bool]:
    """The engine's ids, and whether they were left out because they do not belong together."""
    found = record.tokens
    if found is None:
        return None, False
    tokens = CallTokens(prompt_ids=found.prompt_ids, completion_ids=found.completion_ids, logprobs=found.logprobs)
    try:
        tokens.check(field="tokens")
    except DataError:
        return None, True
    return tokens, False


def _parameters(request: ChatRequest) -> dict[str, Any]:
    """What was asked for beside messages and tools."""
    asked = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stop": list(request.stop) or None,
        "thinking": request.thinking,
        "reasoning_effort": request.reasoning_effort,
        "response_format": request.response_format,
        "tool_choice": None if request.tool_choice is None else msgspec.to_builtins(request.tool_choice),
    }
    said = {name: value for name, value in asked.items() if value is not None}
    return {"request": said} if said else {}


def _labels(record: CallRecord, old: Mapping[str, Any]) -> dict[str, Any]:
    """The labels of a session with one more call. A label over which its calls differ is ``mixed``: what a fallback
    answered must not count for a canary.
    """
    new = {"slot": record.slot, "variant": record.variant, "key": record.key_id, "user": record.user}
    labels = dict(old)
    for name, value in new.items():
        if value:
            labels[name] = value if labels.get(name, value) == value else "mixed"
    return labels
