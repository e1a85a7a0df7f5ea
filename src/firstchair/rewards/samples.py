"""What is graded, and what comes out: a sample, its components' values, and the reward or why there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from firstchair.catalog.call_rules import Matchers
from firstchair.chat.actions import Action, ParsedReply
from firstchair.chat.messages import Message, Tool
from firstchair.core.jsontext import dumps
from firstchair.engines.base import Stop
from firstchair.rollout.episodes import Episode, Task
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.prompt_record import PromptRecord
from firstchair.traces.decisions import DecisionPoint

GATED = "gated"
"""Why a component was not asked: a gate of the sample had failed. It counts at its worst, which is a grade."""
NOT_ASKED = "not_asked"
"""Why a judge was not asked: code had failed to grade the sample, which has no reward whatever a judge would say."""


@dataclass(frozen=True)
class NoValue:
    """A component that has no value, and why. Never a 0."""

    why: str
    """One word to count by: ``gated``, ``timeout``, ``bad_json``, ``no_episode``, …"""
    detail: str = ""


Value = float | NoValue


@dataclass(frozen=True)
class DecisionReply:
    """One reply at one decision point, for verifiers that need no episode."""

    decision: DecisionPoint
    tools: tuple[Tool, ...]
    reply: ParsedReply | Action | None
    """``None``: no action was obtained, which says nothing about the model."""
    matchers: Matchers = field(default_factory=Matchers)
    stop: Stop = Stop.END


@dataclass(frozen=True)
class Sample:
    """One answer to one prompt. ``sample_of_episode`` and ``sample_of_decision`` fill it in."""

    sample_id: str
    group: str
    """The prompt's id: a pairwise judge compares samples of one group."""
    question: str
    """What a judge is shown of the prompt."""
    answer: str
    """What a judge is shown of the sample; blank when the model did and said nothing: no judge is asked then."""
    labels: Mapping[str, Any] = field(default_factory=dict)
    """What ``when`` of a component is matched against: the task's labels and metadata."""
    final_text: str = ""
    """The last thing that was said to the user."""
    episode: Episode | None = None
    decision: DecisionReply | None = None
    cost_usd: float | None = None
    latency_s: float | None = None
    """Waiting for the model, all calls together."""
    reply_tokens: int | None = None
    """Sampled tokens, all calls together. ``None``, here and above: unknown, which is not 0."""
    measures: Mapping[str, float] = field(default_factory=dict)
    """What the environment says the episode took, see ``Outcome.measures``; what is unknown is not in it."""

    @property
    def used_usd(self) -> float | None:
        """US dollars: what the environment counts (experts), else what calls of the model cost. An environment that
        counts and leaves the cost out does not know it: the model's own would not be the whole."""
        return self.measures.get("cost_usd") if self.measures else self.cost_usd

    @property
    def used_s(self) -> float | None:
        """Seconds: what the environment counts, else the waiting for the model."""
        return self.measures.get("latency_s") if self.measures else self.latency_s

    @property
    def tool_calls(self) -> dict[str, float]:
        """Tool on offer → calls of it, where the environment counts them."""
        return {name.removeprefix("calls."): n for name, n in self.measures.items() if name.startswith("calls.")}

    @property
    def failure(self) -> NoValue | None:
        """Why nothing may be said of the model: the episode broke or was cancelled, or no reply came."""
        if self.episode is not None and self.episode.outcome is None:
            return NoValue("episode_failed", self.episode.error or "")
        if self.decision is not None and self.decision.reply is None:
            return NoValue("no_action", "no action was obtained")
        return None


@dataclass(frozen=True)
class GradedSample:
    """What became of one sample."""

    sample_id: str
    group: str
    reward: float | None
    """``None``: ungraded. Left out of training and counted, never a 0."""
    components: Mapping[str, float | None]
    """Component → its value before bounds and weight, for every component that applies to the sample."""
    reasons: Mapping[str, NoValue]
    """Component → why its value is ``None``; ``reward`` → why there is no reward at all."""
    details: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Judge component → its dimensions' scores, or its wins and comparisons."""


def task_labels(task: Task) -> dict[str, Any]:
    """What ``when`` of a component is matched against besides what the sample itself tells: the task's own labels."""
    if isinstance(task, PromptRecord):
        return {"category": task.category, **task.meta}
    if isinstance(task, OrchestrationTask):
        about = {"domain": task.domain, "area": task.area, "difficulty": task.difficulty, "dataset": task.dataset}
        return {**about, "preference": task.preference}
    rows = getattr(task, "rows", None)
    return {} if rows is None else {"rows": list(rows)}


def count_reasons(graded: Iterable[GradedSample]) -> Counter[str]:
    """How often which component failed to grade and why, as ``component: why``; ``reward: why`` counts samples."""
    return Counter(
        f"{name}: {reason.why}"
        for sample in graded
        for name, reason in sample.reasons.items()
        if reason.why not in (GATED, NOT_ASKED)
    )


def sample_of_episode(episode: Episode, labels: Mapping[str, Any] | None = None) -> Sample:
    """A whole episode as a sample; ``labels`` come on top of the session's own."""
    session = episode.session
    opening = next(
        (index + 1 for index, message in enumerate(session.messages) if message.role == "user"), len(session.messages)
    )
    opening = max(opening, session.context_end)
    played, calls = session.messages[opening:], session.calls
    did = any(m.role == "assistant" and (m.tool_calls or m.text.strip()) for m in played)
    replies = [message.text for message in played if message.role == "assistant" and not message.tool_calls]
    costs = [call.cost_usd for call in calls if call.cost_usd is not None]
    waits = [call.latency_ms for call in calls if call.latency_ms is not None]
    return Sample(
        sample_id=session.session_id,
        group=episode.task_id,
        question=dumps([shown_message(message) for message in session.messages[:opening]]),
        answer=dumps([shown_message(message) for message in played]) if did else "",
        labels={**session.labels, **(labels or {})},
        final_text=replies[-1] if replies else "",
        episode=episode,
        cost_usd=sum(costs) if calls and len(costs) == len(calls) else None,
        latency_s=sum(waits) / 1000 if calls and len(waits) == len(calls) else None,
        reply_tokens=sum(call.usage.output for call in calls) if any(call.usage.output for call in calls) else None,
        measures={} if episode.outcome is None else episode.outcome.measures,
    )


def sample_of_decision(
    sample_id: str,
    made: DecisionReply,
    context: tuple[Message, ...],
    *,
    labels: Mapping[str, Any] | None = None,
    reply_tokens: int | None = None,
    latency_s: float | None = None,
    cost_usd: float | None = None,
) -> Sample:
    """One reply at a decision point as a sample. Labels: ``kind`` of the gold action, ``tags``, and ``labels``."""
    decision, reply = made.decision, made.reply
    gold = decision.gold or decision.observed
    text = reply.text if reply is not None else ""
    calls = reply.calls if reply is not None else ()
    blank = not calls and not text.strip()
    return Sample(
        sample_id=sample_id,
        group=decision.dp_id,
        question=dumps([shown_message(message) for message in context]),
        answer="" if blank else dumps(shown_action(calls, text)),
        labels={"kind": gold.kind, "tags": list(decision.tags), **(labels or {})},
        final_text="" if calls else text,
        decision=made,
        cost_usd=cost_usd,
        latency_s=latency_s,
        reply_tokens=reply_tokens,
    )


def shown_message(message: Message) -> dict[str, Any]:
    """A message as a judge sees it. As JSON, a text cannot pass itself off as another message."""
    shown: dict[str, Any] = {"role": message.role, "text": cut(message.text)}
    if message.tool_calls:
        shown["calls"] = [{"tool": call.name, "arguments": cut(call.arguments)} for call in message.tool_calls]
    if message.is_error:
        shown["is_error"] = True
    return shown


def shown_action(calls: Iterable[Any], text: str) -> dict[str, Any]:
    """An action as a judge sees it."""
    shown = [{"tool": call.name, "arguments": cut(call.arguments)} for call in calls]
    return {"calls": shown} if shown else {"reply": cut(text)}


TEXT_LIMIT = 4000
"""Characters of one message that a judge sees."""


def cut(text: str) -> str:
    """``text``, its end replaced by how much is left out when it is over ``TEXT_LIMIT``."""
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]} … ({len(text) - TEXT_LIMIT} more characters)"
