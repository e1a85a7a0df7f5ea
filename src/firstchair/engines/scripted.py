"""An engine that answers from a script: for tests of everything that drives an engine."""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

from firstchair.chat.actions import Action
from firstchair.chat.messages import Message
from firstchair.engines.base import EngineInfo, Generation, Request, Stop
from firstchair.engines.inflight import InFlight

Reply = str | Message | Action | Generation
"""Raw text, an assistant message, an action, or a whole generation (its ``request_id`` is filled in)."""

Script = Callable[[Request], Reply | Awaitable[Reply]] | Sequence[Reply]
"""A function of the request, which may be async, or replies handed out in the order of the requests."""


class ScriptedEngine:
    """Answers every request from ``replies``.

    A function that raises, and a list that has run out, give ``Stop.ERROR`` with the reason, as a real engine
    would. ``encode`` turns text into ids, so that ``ids`` and ``logprobs`` (all 0.0: a script is certain) are set.
    ``seen`` keeps every request, ``batches`` how many came at once.
    """

    def __init__(
        self,
        replies: Script,
        *,
        model: str = "scripted",
        encode: Callable[[str], Sequence[int]] | None = None,
    ):
        self._replies, self._model, self._encode = replies, model, encode
        self._running = InFlight()
        self.seen: list[Request] = []
        self.batches: list[int] = []

    def info(self) -> EngineInfo:
        """Engine ``scripted``."""
        return EngineInfo(engine="scripted", model=self._model)

    async def generate(self, requests: Sequence[Request]) -> AsyncIterator[Generation]:
        """Yield the script's answers as they are ready."""
        self.batches.append(len(requests))
        first = len(self.seen)
        self.seen.extend(requests)
        answers = [
            (request.request_id, self._answer(request, first + offset)) for offset, request in enumerate(requests)
        ]
        async for generation in self._running.each(answers):
            yield generation

    async def _answer(self, request: Request, number: int) -> Generation:
        started = time.perf_counter()
        if callable(self._replies):
            value = self._replies(request)
            reply = await value if inspect.isawaitable(value) else value
        elif number < len(self._replies):
            reply = self._replies[number]
        else:
            raise IndexError(f"the script has {len(self._replies)} replies; this is request {number + 1}")
        return replace(self._generation(request, reply), latency_s=time.perf_counter() - started)

    def _generation(self, request: Request, reply: Reply) -> Generation:
        if isinstance(reply, Generation):
            return replace(reply, request_id=request.request_id)
        if isinstance(reply, Action):
            reply = reply.to_message()
        if isinstance(reply, Message):
            return Generation(request_id=request.request_id, stop=Stop.END, message=reply)
        ids = tuple(self._encode(reply)) if self._encode else None
        return Generation(
            request_id=request.request_id,
            stop=Stop.END,
            text=reply,
            ids=ids,
            logprobs=None if ids is None else (0.0,) * len(ids),
            prompt_ids=request.prompt_ids,
            prompt_tokens=len(request.prompt_ids or ()),
        )

    async def cancel(self, request_id: str) -> bool:
        """Stop a request whose function is still being awaited."""
        return self._running.cancel(request_id)

    async def close(self) -> None:
        """Cancel what is running."""
        self._running.cancel_all()
