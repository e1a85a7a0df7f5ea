"""One call carried out: an expert asked or a tool run, whatever comes of it, as an observation and its record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.messages import Message, TextPart, ToolCall, tool_result
from firstchair.core.errors import RunFailed, UpstreamError
from firstchair.engines.base import ErrorKind
from firstchair.engines.expert import ExpertPool
from firstchair.rollout.orchestration import prompt
from firstchair.rollout.orchestration.limits import OrchestrationLimits
from firstchair.rollout.orchestration.offer import OnOffer, subject_of
from firstchair.rollout.orchestration.purse import Purse
from firstchair.rollout.orchestration.trajectory import Dispatch
from firstchair.tools.toolset import Toolset

CANCELLED = "cancelled"
"""Kind of error of a call that was cancelled while it was under way."""
FAULTS = frozenset({*map(str, ErrorKind), prompt.TOOL_FAILED}) - {str(ErrorKind.CONTEXT_OVERFLOW)}
"""Kinds of error that say nothing about the policy. A question that is too long is its own doing."""


@dataclass(frozen=True)
class Carried:
    """What became of one call."""

    dispatch: Dispatch | None
    """``None``: it was not made, because the budget is spent."""
    observation: Message
    """What the policy reads."""
    text: str
    """The answer before any cap; empty when there was none."""


@dataclass(frozen=True)
class _Answer:
    text: str = ""
    error_kind: str | None = None
    error: str = ""
    usage: TokenCounts | None = None
    cost_nano: int | None = 0
    served_model: str = ""
    latency_s: float | None = None
    """``None``: as long as it took here. A simulated expert tells another."""


@dataclass(frozen=True)
class Dispatcher:
    """Carries out calls. What fails is part of the record, not an exception."""

    experts: ExpertPool
    toolset: Toolset | None
    limits: OrchestrationLimits
    over: Callable[[Dispatch], None]
    """Told of each call as it ends: one that is cancelled has no other way into a record."""
    purse: Purse | None = None
    """What models may cost together."""
    asked: Callable[[str], None] | None = None
    """Told the label of each call as it is made."""

    async def carry_out(self, offered: OnOffer, call: ToolCall, *, step: int, started_s: float) -> Carried:
        """Ask or run, within ``dispatch_s``. ``call`` names the label that the policy uses.

        With a purse models are asked one after the other, and no more once it is empty.
        """
        if self.purse is None or offered.kind != "model":
            return await self._made(offered, call, step, started_s)
        clock = time.perf_counter()
        async with self.purse.turn:
            if self.purse.is_empty:
                return Carried(None, tool_result(call, prompt.NOT_PAID, is_error=True), "")
            carried = await self._made(offered, call, step, started_s + time.perf_counter() - clock)
            if carried.dispatch is not None:
                self.purse.take(carried.dispatch.cost_nano)
            return carried

    async def _made(self, offered: OnOffer, call: ToolCall, step: int, started_s: float) -> Carried:
        clock = time.perf_counter()
        if self.asked is not None:
            self.asked(offered.label)
        try:
            answer = await self._within(offered, call)
        except asyncio.CancelledError:
            self.over(
                Dispatch(
                    step=step,
                    label=offered.label,
                    name=offered.name,
                    kind=offered.kind,
                    latency_s=time.perf_counter() - clock,
                    cost_nano=_unanswered_nano(offered),
                    error_kind=CANCELLED,
                    started_s=started_s,
                )
            )
            raise
        label, text, most = offered.label, answer.text, self.limits.observation_chars
        if answer.error_kind == prompt.TOOL_ERROR:
            observed = prompt.cut_to(text, most)
        elif answer.error_kind is not None:
            observed = prompt.fault(label, answer.error_kind)
        else:
            observed = prompt.cut_to(text, most) if text.strip() else prompt.no_words(label)
        failed = answer.error_kind is not None
        dispatch = Dispatch(
            step=step,
            label=label,
            name=offered.name,
            kind=offered.kind,
            latency_s=time.perf_counter() - clock if answer.latency_s is None else answer.latency_s,
            usage=answer.usage,
            cost_nano=answer.cost_nano,
            served_model=answer.served_model,
            error_kind=answer.error_kind,
            error=prompt.cut_to(answer.error, most),
            started_s=started_s,
            cut=len(text) > most,
            empty=not failed and not text.strip(),
        )
        self.over(dispatch)
        return Carried(dispatch, tool_result(call, observed, is_error=failed), "" if failed else text)

    async def _within(self, offered: OnOffer, call: ToolCall) -> _Answer:
        is_model, limit_s = offered.kind == "model", self.limits.dispatch_s
        spent = _unanswered_nano(offered)
        try:
            async with asyncio.timeout(limit_s) as timeout:
                return await (self._asked(offered, call) if is_model else self._ran(offered, call))
        except TimeoutError as error:
            reason = f"no answer within {limit_s:g} s" if timeout.expired() else f"TimeoutError: {error}"
            return _Answer(error_kind=str(ErrorKind.TIMEOUT), error=reason, cost_nano=spent)
        except (UpstreamError, RunFailed) as error:
            kind = str(ErrorKind.ENGINE) if is_model else prompt.TOOL_FAILED
            return _Answer(error_kind=kind, error=str(error), cost_nano=spent)

    async def _asked(self, offered: OnOffer, call: ToolCall) -> _Answer:
        found = await self.experts.ask(offered.name, subject_of(offered.kind, call) or "")
        failed = found.error is not None or found.error_kind is not None
        return _Answer(
            text="" if failed else found.text,
            error_kind=str(found.error_kind or ErrorKind.ENGINE) if failed else None,
            error=found.error or "",
            usage=found.usage,
            cost_nano=found.cost_nano,
            served_model=found.served_model,
            latency_s=found.latency_s,
        )

    async def _ran(self, offered: OnOffer, call: ToolCall) -> _Answer:
        if self.toolset is None:
            raise RunFailed(f"{offered.name}: is offered, and there is no toolset to run it")
        found = await self.toolset.call(msgspec.structs.replace(call, name=offered.name))
        text = _shown(found)
        return _Answer(text, prompt.TOOL_ERROR, text) if found.is_error else _Answer(text)


def _unanswered_nano(offered: OnOffer) -> int | None:
    """What a call has cost that nothing came back from: of a model nobody knows."""
    return None if offered.kind == "model" else 0


def _shown(result: Message) -> str:
    """What of a tool's result can be read as text."""
    return "\n".join(part.text if isinstance(part, TextPart) else f"[{part_name(part)}]" for part in result.content)


def part_name(part: object) -> str:
    """How a part that is no text is told of."""
    return f"{type(part).__name__.removesuffix('Part').lower()}, not shown"
