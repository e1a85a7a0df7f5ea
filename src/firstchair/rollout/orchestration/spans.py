"""A trajectory as OpenTelemetry spans, by the conventions for generative AI; written once it is over.

    invoke_agent                        the rollout: tokens, cost, grade
      └─ step n
           ├─ chat <policy's model>     the policy's own call
           └─ execute_tool <name>       each dispatch: served model, tokens, cost, why it failed

Spans carry names and numbers, no text of the conversation.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from firstchair.catalog.token_counts import NANO, TokenCounts
from firstchair.rollout.orchestration.trajectory import Dispatch, Trajectory, TrajectoryEnd
from firstchair.traces.session import ModelCall, Session

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

NS = 1_000_000_000


def emit_spans(tracer: Tracer, session: Session, found: Trajectory, parent: Any = None) -> str:
    """Write the spans of ``found``, which was recorded as ``session``; the trace's id as 32 hex digits. ``parent`` is
    the context of whoever asked for it, where there is one.

    Each span stands at the time when it happened. Empty when the SDK does not sample the trace.
    """
    from opentelemetry.trace import format_trace_id, set_span_in_context

    start = _ns(session.created_at)
    attributes = _of_rollout(session, found)
    root = tracer.start_span("invoke_agent orchestrator", context=parent, start_time=start, attributes=attributes)
    last = start + round(found.latency_s * NS)
    if found.correct is not None:
        label = "correct" if found.correct else "wrong"
        evaluation = {"gen_ai.evaluation.name": found.graded_by, "gen_ai.evaluation.score.label": label}
        root.add_event("gen_ai.evaluation.result", evaluation, timestamp=last)
    under_root = set_span_in_context(root)
    for number, (call, dispatches) in enumerate(_steps(session.calls, found.dispatches)):
        times = [*([_call_times(call)] if call is not None else []), *(_times(one, start) for one in dispatches)]
        begin, end = min(first for first, _ in times), max(second for _, second in times)
        step = tracer.start_span(
            f"step {number}", context=under_root, start_time=begin, attributes={"firstchair.step": number}
        )
        under_step = set_span_in_context(step)
        if call is not None:
            _chat(tracer, under_step, call)
        for one in dispatches:
            _dispatch(tracer, under_step, one, _times(one, start))
        step.end(end_time=end)
        last = max(last, end)
    _fail(root, found.error.partition(": ")[0] if found.error else None)
    root.end(end_time=last)
    context = root.get_span_context()
    return format_trace_id(context.trace_id) if context.trace_flags.sampled else ""


def _steps(
    calls: tuple[ModelCall, ...], dispatches: tuple[Dispatch, ...]
) -> list[tuple[ModelCall | None, list[Dispatch]]]:
    """The policy's call and the dispatches of each step. A policy that records no calls has dispatches alone."""
    by_step: dict[int, list[Dispatch]] = defaultdict(list)
    for one in dispatches:
        by_step[one.step].append(one)
    count = max([len(calls), *(number + 1 for number in by_step)])
    steps = [(calls[n] if n < len(calls) else None, by_step.get(n, [])) for n in range(count)]
    return [(call, made) for call, made in steps if call is not None or made]


def _of_rollout(session: Session, found: Trajectory) -> dict[str, Any]:
    cost = found.expert_cost_nano
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "firstchair",
        "gen_ai.agent.name": "orchestrator",
        "gen_ai.conversation.id": session.session_id,
        "gen_ai.request.model": found.policy_model,
        "gen_ai.usage.input_tokens": found.prompt_tokens,
        "gen_ai.usage.output_tokens": found.completion_tokens,
        "firstchair.task_id": found.task_id,
        "firstchair.sample": found.sample,
        "firstchair.end": str(found.end),
        "firstchair.dispatches": len(found.dispatches),
        "firstchair.parse_failures": found.parse_failures,
        "firstchair.nudges": sum(found.nudges.values()),
    }
    if cost is not None:
        attributes["firstchair.cost_usd"] = cost / NANO
    if found.end is TrajectoryEnd.FAILED and found.error:
        attributes["error.type"] = found.error.partition(": ")[0]
    return attributes


def _chat(tracer: Tracer, context: Any, call: ModelCall) -> None:
    from opentelemetry.trace import SpanKind

    usage = call.usage
    start, end = _call_times(call)
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": call.provider or "firstchair",
        "gen_ai.request.model": call.model,
        "gen_ai.usage.input_tokens": usage.input + usage.cache_read + usage.cache_write,
        "gen_ai.usage.output_tokens": usage.output,
    }
    span = tracer.start_span(
        f"chat {call.model}".strip(), context=context, kind=SpanKind.CLIENT, start_time=start, attributes=attributes
    )
    _fail(span, call.error.partition(": ")[0] if call.error else None)
    span.end(end_time=end)


def _dispatch(tracer: Tracer, context: Any, one: Dispatch, times: tuple[int, int]) -> None:
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": one.name,
        "gen_ai.tool.type": "extension" if one.kind == "model" else "function",
        "firstchair.label": one.label,
        "firstchair.kind": one.kind,
    }
    if one.served_model:
        attributes["gen_ai.response.model"] = one.served_model
    if one.usage is not None:
        attributes |= _usage(one.usage)
    if one.cost_nano is not None:
        attributes["firstchair.cost_usd"] = one.cost_nano / NANO
    span = tracer.start_span(f"execute_tool {one.name}", context=context, start_time=times[0], attributes=attributes)
    _fail(span, one.error_kind)
    span.end(end_time=times[1])


def _usage(counts: TokenCounts) -> dict[str, int]:
    written = counts.cache_write_5m + counts.cache_write_1h
    return {
        "gen_ai.usage.input_tokens": counts.input + counts.cache_read + written,
        "gen_ai.usage.output_tokens": counts.output,
    }


def _fail(span: Span, why: str | None) -> None:
    if why is None:
        return
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", why)
    span.set_status(Status(StatusCode.ERROR))


def _ns(iso: str) -> int:
    moment = datetime.fromisoformat(iso)
    return int(moment.timestamp()) * NS + moment.microsecond * 1000


def _call_times(call: ModelCall) -> tuple[int, int]:
    start = _ns(call.started_at)
    return start, start + round((call.latency_ms or 0.0) * 1e6)


def _times(one: Dispatch, rollout_start: int) -> tuple[int, int]:
    start = rollout_start + round(one.started_s * NS)
    return start, start + round(one.latency_s * NS)
