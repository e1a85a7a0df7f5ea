"""What Inspect logged of a sample (``inspect_ai.log.EvalSample``), as a row and as a session that the viewer shows.

The log's objects are read by their attributes alone, so nothing here needs Inspect to be installed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from firstchair.catalog.prices import PriceTable
from firstchair.catalog.token_counts import NANO, TokenCounts
from firstchair.chat.messages import ImagePart, Message, Part, RawPart, TextPart, ThinkingPart, ToolCall
from firstchair.core.errors import DataError
from firstchair.evals.benchmarks.rows import BenchRow, Outcome
from firstchair.traces.session import ModelCall, Session, Usage, turns_of

_WORDS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""Inspect's letters: correct, incorrect, partial, no answer."""


def row_of(sample: Any, seed: int, prices: PriceTable, asked: str) -> BenchRow:
    """The row. ``asked`` is the model that was asked for; its price counts where the served one has none.

    Raises ``DataError`` for a score that is no number from 0 to 1.
    """
    calls = [event for event in sample.events if event.event == "model"]
    own = [event for event in calls if event.role is None]
    helper = [event for event in calls if event.role is not None]
    score, outcome, error = _graded(sample, calls)
    return BenchRow(
        sample_id=str(sample.id),
        seed=seed,
        outcome=outcome,
        score=score,
        correct=None if score is None else score == 1.0,
        answer=_answer(sample, own),
        target=_target(sample),
        error=error,
        limit="" if sample.limit is None else str(sample.limit.type),
        calls=len(own),
        usage=sum((_counts(event) for event in own), TokenCounts()),
        cost_nano=_sum([_cost(event, prices, asked) for event in own]),
        helper_calls=len(helper),
        helper_usage=sum((_counts(event) for event in helper), TokenCounts()),
        helper_cost_nano=_sum([_cost(event, prices, str(event.model)) for event in helper]),
        latency_s=sum(event.working_time or 0.0 for event in own),
        total_s=sample.working_time or 0.0,
        served_models=_served(own),
        helper_models=_served(helper),
    )


def _graded(sample: Any, calls: Sequence[Any]) -> tuple[float | None, Outcome, str]:
    """Score, outcome, and why there is no score."""
    if sample.error is not None:
        # The grader is asked last: when one of its calls failed there was an answer to grade.
        broken = [event for event in calls if event.error]
        graders_fault = any(event.role == "grader" for event in broken)
        # Inspect's own message holds the whole request.
        error = str(broken[-1].error if broken else sample.error.message)
        return None, "ungraded" if graders_fault else "failed", error
    given = next(iter((sample.scores or {}).values()), None)
    score = None if given is None else score_value(given.value)
    if score is None:
        said = "" if given is None else str(given.explanation or "")
        return None, "ungraded", f"the grader's verdict cannot be read: {said[:500]}" if given else "no grade"
    return score, "graded", ""


def score_value(value: Any) -> float | None:
    """Inspect's value of a score as a number; ``None`` for one that was not scored (NaN, null).

    Raises ``DataError`` for a value that is no number from 0 to 1 and none of its letters.
    """
    if isinstance(value, dict) and "score" in value:
        value = value["score"]
    if isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, int | float) and 0 <= value <= 1:
        return float(value)
    raise DataError(f"found the score {value!r}; expected a number from 0 to 1 or one of {', '.join(_WORDS)}")


def _answer(sample: Any, own: Sequence[Any]) -> str:
    """What the grader looked at, where it says so, else what the endpoint said last."""
    given = next(iter((sample.scores or {}).values()), None)
    if given is not None and given.answer:
        return str(given.answer)
    return str(own[-1].output.completion) if own and own[-1].output.choices else ""


def _target(sample: Any) -> str:
    return sample.target if isinstance(sample.target, str) else "\n".join(sample.target)


def _counts(event: Any) -> TokenCounts:
    usage = event.output.usage
    if usage is None:
        return TokenCounts()
    return TokenCounts(
        input=usage.input_tokens,
        cache_read=usage.input_tokens_cache_read or 0,
        cache_write_5m=usage.input_tokens_cache_write or 0,
        output=usage.output_tokens,
        reasoning=usage.reasoning_tokens,
    )


def _cost(event: Any, prices: PriceTable, asked: str) -> int | None:
    """Nano-USD of one call; ``None``: unknown. A call that failed or came from a cache costs nothing."""
    if event.error or event.cache == "read":
        return 0
    body = event.call.response if event.call is not None and isinstance(event.call.response, dict) else {}
    billed = _nano((body.get("usage") or {}).get("cost"))
    if billed is not None:
        return billed
    counts = _counts(event)
    by_table = next(
        (cost for name in (event.output.model, _bare(asked)) if (cost := prices.cost_nano(name, counts)) is not None),
        None,
    )
    routed = body.get("firstchair")
    if not isinstance(routed, dict):
        return by_table if event.output.usage is not None else None
    # An orchestration: what its experts cost comes on top of the policy's own calls.
    policy = _nano(routed.get("policy_cost_usd"))
    return _sum([_nano(routed.get("cost_usd")), by_table if policy is None else policy])


def _bare(model: str) -> str:
    """``gpt-5`` of ``openai/gpt-5``."""
    return model.rpartition("/")[2]


def _nano(usd: Any) -> int | None:
    if isinstance(usd, bool) or not isinstance(usd, int | float) or not 0 <= usd < math.inf:
        return None
    return int((Decimal(str(usd)) * NANO).to_integral_value())


def _sum(costs: Sequence[int | None]) -> int | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def _served(events: Sequence[Any]) -> tuple[str, ...]:
    return tuple(sorted({str(event.output.model) for event in events if event.output.model and not event.error}))


def session_of(sample: Any, row: BenchRow, *, benchmark: str) -> Session:
    """The sample as a session: ``firstchair trajectories view`` shows it with its grade.

    The messages are those of the endpoint's last call: of a simulated customer it hears only what was said to it.
    """
    own = [event for event in sample.events if event.event == "model" and event.role is None]
    messages = tuple(_message(one) for one in (_conversation(own[-1]) if own else _opening(sample)))
    labels = {
        "task_id": row.sample_id,
        "category": benchmark,
        "seed": row.seed,
        "outcome": row.outcome,
        "score": row.score,
        "completed": row.correct,
        "gold": row.target,
        "graded answer": row.answer,
        "error": row.error,
        "limit": row.limit,
    }
    call = ModelCall(
        call_id=f"{row.sample_id}:{row.seed}",
        model=", ".join(row.served_models),
        latency_ms=row.latency_s * 1000,
        usage=Usage(
            input=row.usage.input,
            output=row.usage.output,
            cache_read=row.usage.cache_read,
            cache_write=row.usage.cache_write_5m + row.usage.cache_write_1h,
        ),
        cost_usd=None if row.cost_nano is None else row.cost_nano / NANO,
    )
    return Session(
        session_id=f"{benchmark}:{_plain(row.sample_id)}:{row.seed}",
        source="rollout",
        created_at=str(sample.started_at or ""),
        messages=messages,
        turns=turns_of(messages),
        calls=(call,),
        labels={name: value for name, value in labels.items() if value not in ("", None)},
    )


def _plain(text: str) -> str:
    """An id may hold no white space."""
    return "_".join(text.split()) or "_"


def _conversation(event: Any) -> list[Any]:
    return [*event.input, *(choice.message for choice in event.output.choices[:1])]


def _opening(sample: Any) -> Sequence[Any]:
    """What was asked, of a sample that broke before its first call."""
    if not isinstance(sample.input, str):
        return list(sample.input)
    return [_Asked(sample.input)]


class _Asked:
    role = "user"

    def __init__(self, content: str):
        self.content = content


def _message(given: Any) -> Message:
    """One of Inspect's messages."""
    content = [given.content] if isinstance(given.content, str) else given.content
    calls = getattr(given, "tool_calls", None) or ()
    return Message(
        role=given.role,
        content=tuple(_part(part) for part in content if part != ""),
        tool_calls=tuple(ToolCall.of(call.id, call.function, call.arguments) for call in calls),
        tool_call_id=getattr(given, "tool_call_id", None),
        name=getattr(given, "function", None),
        is_error=getattr(given, "error", None) is not None,
    )


def _part(part: Any) -> Part:
    if isinstance(part, str):
        return TextPart(text=part)
    if part.type == "text":
        return TextPart(text=part.text)
    if part.type == "reasoning":
        return ThinkingPart(text=part.summary or "" if part.redacted else part.reasoning)
    if part.type == "image":
        return ImagePart(url=part.image)
    return RawPart(provider="other", data=part.model_dump(mode="json"))
