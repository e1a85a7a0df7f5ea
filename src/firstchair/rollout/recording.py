"""Recording at full speed: the harness loop against a model behind real HTTP, with as little work as that takes.

A conversation is sent again and again, one message longer each time. So every message is turned into JSON once
and a request is the old bytes plus the new ones; tools are turned into JSON once for all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson

from firstchair.chat.messages import Message, Tool
from firstchair.chat.openai_calls import replayable
from firstchair.chat.openai_wire import messages_to_openai, tools_to_openai
from firstchair.core.clock import utc_now
from firstchair.core.errors import DataError
from firstchair.engines.base import ErrorKind
from firstchair.engines.http_retry import kind_of_status
from firstchair.rollout.environment import Environment
from firstchair.rollout.episodes import Episode, Task, run_episodes
from firstchair.rollout.policy import PolicyReply, PolicyRequest
from firstchair.rollout.wire_reply import Timing, read_reply

if TYPE_CHECKING:
    from firstchair.core.http_client import Pool


@dataclass
class _Conversation:
    """The bytes of the messages sent so far, and which messages they are."""

    messages: tuple[Message, ...] = ()
    body: bytearray = field(default_factory=bytearray)

    def extended(self, messages: tuple[Message, ...]) -> bytes:
        known = len(self.messages)
        if self.messages != messages[:known]:
            # The history was rewritten (a restored snapshot, say): start over.
            self.body, known = bytearray(), 0
        for row in messages_to_openai(replayable(messages[known:])):
            self.body += (b"," if self.body else b"") + orjson.dumps(row)
        self.messages = messages
        return bytes(self.body)


class FastOpenAIPolicy:
    """An OpenAI-compatible model as a policy, for throughput: no SDK, no retries, one shared connection pool.

    ``base_url`` with its ``/v1``. Use it as an async context manager. A request that fails is a reply with
    ``error``; use ``HttpPolicy`` where retries, streaming or Anthropic's dialect are wanted. ``session_header``: the
    header in which every request names its episode (the task's id, with ``#1`` for its second trial), for a gateway.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str = "none",
        connections: int = 20,
        timeout_s: float = 120.0,
        provider: str = "openai",
        session_header: str = "",
    ):
        self.name, self._url, self._provider = model, f"{base_url.rstrip('/')}/chat/completions", provider
        self._connections, self._timeout_s, self._session_header = connections, timeout_s, session_header
        self._headers = {"authorization": f"Bearer {api_key}", "content-type": "application/json"}
        self._head = b'{"model":' + orjson.dumps(model) + b',"messages":['
        self._tools: dict[int, tuple[tuple[Tool, ...], bytes]] = {}
        self._conversations: dict[str, _Conversation] = {}
        self._path = b""
        self._pool: Pool | None = None

    async def __aenter__(self) -> FastOpenAIPolicy:
        from firstchair.core.http_client import KEEPALIVE_S, Pool, request_path

        self._path = request_path(self._url)
        self._pool = Pool(self._url, limit=self._connections, keepalive_s=KEEPALIVE_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._pool is not None:
            await self._pool.close()

    async def act(self, requests: Sequence[PolicyRequest]) -> list[PolicyReply]:
        """One HTTP call per request, all at once."""
        if len(requests) == 1:
            return [await self._act(requests[0])]
        return list(await asyncio.gather(*(self._act(request) for request in requests)))

    async def _act(self, request: PolicyRequest) -> PolicyReply:
        from firstchair.core.http_client import ConnectTimeout, HttpFault, head_lines

        assert self._pool is not None, "use `async with FastOpenAIPolicy(...)`"
        name = request.episode_id.removesuffix("#0")
        own = {self._session_header: name} if self._session_header else {}
        body, started, clock = self._body(request), utc_now(), time.perf_counter()
        try:
            head = head_lines(self._headers | own)
            async with asyncio.timeout(self._timeout_s):
                answer = await self._pool.post(self._path, head, body, connect_s=self._timeout_s)
                raw, status = await answer.rest(), answer.status
        except (HttpFault, TimeoutError) as error:
            kind = ErrorKind.TIMEOUT if isinstance(error, TimeoutError | ConnectTimeout) else ErrorKind.CONNECTION
            return PolicyReply(error=f"{kind}: {type(error).__name__}: {error}", error_kind=kind)
        latency_ms = (time.perf_counter() - clock) * 1000
        if status != 200:
            text = raw[:500].decode(errors="replace")
            kind = kind_of_status(status, text)
            return PolicyReply(error=f"{kind}: HTTP {status}: {text}", error_kind=kind)
        try:
            timing = Timing(started, latency_ms)
            return read_reply("openai", orjson.loads(raw), request.tools, timing, provider=self._provider)
        except (ValueError, TypeError, AttributeError, DataError) as error:
            reason = f"{ErrorKind.BAD_RESPONSE}: {type(error).__name__}: {error}"
            return PolicyReply(error=reason, error_kind=ErrorKind.BAD_RESPONSE)

    def _body(self, request: PolicyRequest) -> bytes:
        conversation = self._conversations.pop(request.episode_id, None) or _Conversation()
        # Re-inserted at the end: the oldest one, of an episode long over, is the first to go.
        self._conversations[request.episode_id] = conversation
        if len(self._conversations) > 4 * self._connections:
            del self._conversations[next(iter(self._conversations))]
        parts = [self._head, conversation.extended(request.messages), b"]"]
        if request.tools:
            parts += [b',"tools":', self._tools_json(request.tools)]
        return b"".join([*parts, b"}"])

    def _tools_json(self, tools: tuple[Tool, ...]) -> bytes:
        key = id(tools)
        kept = self._tools.get(key)
        if kept is None or kept[0] is not tools:
            if len(self._tools) >= 16:
                self._tools.clear()
            kept = self._tools[key] = (tools, orjson.dumps(tools_to_openai(tools)))
        return kept[1]


async def record_sessions(
    base_url: str,
    tasks: Iterable[Task],
    env_factory: Callable[[], Environment],
    *,
    model: str = "desk-teacher",
    api_key: str = "none",
    seed: int = 0,
    concurrency: int = 20,
    session_header: str = "",
) -> AsyncGenerator[Episode, None]:
    """Run every task against the model at ``base_url`` (with ``/v1``) and yield the recordings.

    ``store.add([e.session], {e.session.catalog_id: e.tools})`` takes them. Episodes that failed on the way have
    ``error`` set and are not complete recordings: count them, do not store them. Source is ``scripted``.
    """
    policy = FastOpenAIPolicy(
        base_url, model, api_key=api_key, connections=concurrency, session_header=session_header
    )
    async with policy:
        run = run_episodes(env_factory, tasks, policy, seed=seed, concurrency=concurrency, source="scripted")
        async with aclosing(run) as episodes:
            async for episode in episodes:
                yield episode
