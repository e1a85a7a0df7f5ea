"""A routed answer as a ``chat.completion``, as the chunks of its stream, and as headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from firstchair.catalog.token_counts import NANO
from firstchair.chat import openai_stream
from firstchair.chat.messages import assistant_message
from firstchair.chat.openai_wire import message_to_openai_response, messages_to_openai
from firstchair.chat.wire_request import Finish, TokenUsage, finish_to_openai, usage_to_openai
from firstchair.rollout.live_episode import EpisodeEnd
from firstchair.rollout.orchestration.trajectory import Dispatch, TrajectoryEnd
from firstchair.serve.orchestrator import Routed


@dataclass(frozen=True)
class Head:
    """What stands on an answer and on each of its chunks."""

    request_id: str
    model: str
    created: int
    """Seconds since 1970."""

    @property
    def completion_id(self) -> str:
        """``id`` of the answer."""
        return f"chatcmpl-{self.request_id}"


def completion(routed: Routed, head: Head, *, trace: bool) -> dict[str, Any]:
    """The whole answer, with ``firstchair`` beside OpenAI's fields."""
    return _plain(routed, head) | {"firstchair": report(routed, head, trace=trace)}


def chunks(routed: Routed, head: Head, *, include_usage: bool, trace: bool) -> Iterator[dict[str, Any]]:
    """The chunks behind the first one (``opening``); the last has ``firstchair``."""
    _, *found = openai_stream.chunks(_plain(routed, head), include_usage=include_usage)
    yield from found[:-1]
    yield found[-1] | {"firstchair": report(routed, head, trace=trace)}


def opening(head: Head, *, include_usage: bool) -> dict[str, Any]:
    """The first chunk: who speaks. It is sent before anything is known of the answer."""
    empty = _response("", head, Finish.STOP, TokenUsage())
    return next(openai_stream.chunks(empty, include_usage=include_usage))


def headers(routed: Routed, head: Head) -> dict[str, str]:
    """What a proxy or a log can read without the body; a cost that is not known has no header."""
    found = {"x-firstchair-trace-id": _trace_id(routed, head)}
    for name, cost in (("cost", routed.found.expert_cost_nano), ("policy-cost", routed.found.policy_cost_nano)):
        if cost is not None:
            found[f"x-firstchair-{name}-usd"] = f"{cost / NANO:.9f}"
    return found


def report(routed: Routed, head: Head, *, trace: bool) -> dict[str, Any]:
    """The field ``firstchair`` of an answer, and of an error behind which something was asked; see docs/serve.md."""
    found = routed.found
    out: dict[str, Any] = {
        "cost_usd": _usd(found.expert_cost_nano),
        "known_cost_usd": _usd(found.known_cost_nano),
        "unpriced_calls": found.unpriced,
        "policy_cost_usd": _usd(found.policy_cost_nano),
        "experts": _by_name(one for one in found.dispatches if one.kind == "model"),
        "tools": _by_name(one for one in found.dispatches if one.kind != "model"),
        "steps": routed.steps,
        "end": routed.end,
        "salvaged": found.salvaged,
        "budget_spent": routed.budget_spent,
        "latency_s": round(found.latency_s, 3),
        "trace_id": _trace_id(routed, head),
        "session_id": found.meta["session_id"],
    }
    if trace:
        out["trace"] = {
            "calls": [_call(one) for one in found.dispatches],
            "messages": messages_to_openai(found.messages, dropped=[]),
        }
    return out


def _plain(routed: Routed, head: Head) -> dict[str, Any]:
    found = routed.found
    finish = Finish.STOP if found.end is TrajectoryEnd.ANSWERED else Finish.LENGTH
    if routed.episode_end is EpisodeEnd.REFUSED:
        finish = Finish.REFUSAL
    return _response(found.final_answer, head, finish, _usage(routed))


def _response(text: str, head: Head, finish: Finish, usage: TokenUsage) -> dict[str, Any]:
    return message_to_openai_response(
        assistant_message(text),
        model=head.model,
        response_id=head.completion_id,
        created=head.created,
        finish_reason=finish_to_openai(finish)[0],
        usage=usage_to_openai(usage),
    )


def _usage(routed: Routed) -> TokenUsage:
    """Of the policy, all its steps; what it wrote before its last one counts as reasoning."""
    used = [call.usage for call in routed.calls]
    output = sum(usage.output for usage in used)
    return TokenUsage(
        input=sum(usage.input for usage in used),
        output=output,
        cache_read=sum(usage.cache_read for usage in used),
        cache_write=sum(usage.cache_write for usage in used),
        reasoning=output - used[-1].output if used else 0,
    )


def _by_name(dispatches: Iterable[Dispatch]) -> list[dict[str, Any]]:
    """One row a name, in the order of the first calls. ``latency_s`` is of all its calls together."""
    rows: dict[str, list[Dispatch]] = {}
    for one in dispatches:
        rows.setdefault(one.name, []).append(one)
    return [
        {
            "name": name,
            "calls": len(made),
            "cost_usd": _usd(_sum([one.cost_nano for one in made])),
            "latency_s": round(sum(one.latency_s for one in made), 3),
            "errors": sum(one.error_kind is not None for one in made),
        }
        for name, made in rows.items()
    ]


def _call(one: Dispatch) -> dict[str, Any]:
    return {
        "step": one.step,
        "label": one.label,
        "name": one.name,
        "kind": one.kind,
        "cost_usd": _usd(one.cost_nano),
        "latency_s": round(one.latency_s, 3),
        "served_model": one.served_model,
        "error": one.error_kind,
    }


def _sum(costs: list[int | None]) -> int | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def _usd(nano: int | None) -> float | None:
    return None if nano is None else nano / NANO


def _trace_id(routed: Routed, head: Head) -> str:
    """Of the spans; where none are written, the request's own id, which the log has too."""
    return routed.found.trace_id or head.request_id
