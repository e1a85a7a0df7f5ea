"""Spans of rollouts: rollout, step, the policy's call and each dispatch, by the conventions for generative AI."""

from __future__ import annotations

import asyncio
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

from firstchair.chat.messages import assistant_message
from firstchair.engines.base import ErrorKind, Sampling
from firstchair.engines.expert import ExpertAnswer
from firstchair.engines.scripted import ScriptedEngine
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.orchestration.environment import OrchestrationEnvironment
from firstchair.rollout.orchestration.run import run_orchestrations
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.orchestration.trajectory import Trajectory
from firstchair.rollout.rollouts import RolloutPlan
from firstchair.testing.orchestration import ExactGrader, ScriptedExperts, calls, failing, model_on_offer

TASK = OrchestrationTask(task_id="t", problem="What is 6 · 7?", gold_answer="42")


def play(tracer: Any) -> Trajectory:
    def experts(expert: str, question: str) -> str | ExpertAnswer:
        return "42" if expert == "big" else failing(ErrorKind.RATE_LIMITED)

    both = calls(("big", {"input": "6*7?"}), ("model_x7k2", {"input": "6*7?"}))
    engine = ScriptedEngine([both, assistant_message("FINAL_ANSWER: 42")], model="policy-1")
    offer = (model_on_offer("big"), model_on_offer("model_x7k2", "small"))

    def make() -> OrchestrationEnvironment:
        return OrchestrationEnvironment(lambda task, seed: offer, ScriptedExperts(experts), None, ExactGrader())

    async def run() -> Trajectory:
        policy, plan = EnginePolicy(engine, None, Sampling()), RolloutPlan(samples=1, seed=0)
        (found,) = [one async for one in run_orchestrations(make, [TASK], policy, plan, tracer=tracer)]
        return found

    return asyncio.run(run())


def test_a_rollout_is_a_tree_of_spans() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    found = play(provider.get_tracer("test"))
    spans: dict[str, ReadableSpan] = {span.name: span for span in exporter.get_finished_spans()}
    assert sorted(span.name for span in exporter.get_finished_spans()) == [
        *("chat policy-1", "chat policy-1", "execute_tool big", "execute_tool small"),
        *("invoke_agent orchestrator", "step 0", "step 1"),
    ]
    root, step = spans["invoke_agent orchestrator"], spans["step 0"]
    assert root.parent is None
    assert f"{root.context.trace_id:032x}" == found.trace_id
    assert step.parent.span_id == root.context.span_id
    for name in ("execute_tool big", "execute_tool small"):
        assert spans[name].parent.span_id == step.context.span_id
    for span in spans.values():
        assert f"{span.context.trace_id:032x}" == found.trace_id
        assert root.start_time <= span.start_time <= span.end_time
    assert root.end_time >= step.end_time >= spans["execute_tool big"].end_time
    assert spans["execute_tool big"].end_time - spans["execute_tool big"].start_time == 500_000_000
    attributes = dict(root.attributes)
    assert attributes["gen_ai.operation.name"] == "invoke_agent"
    assert (attributes["firstchair.end"], attributes["firstchair.dispatches"]) == ("answered", 2)
    (graded,) = root.events
    assert graded.attributes["gen_ai.evaluation.score.label"] == "correct"
    big = dict(spans["execute_tool big"].attributes)
    assert (big["gen_ai.tool.name"], big["gen_ai.response.model"]) == ("big", "big-2026")
    assert (big["gen_ai.usage.input_tokens"], big["firstchair.cost_usd"]) == (100, 0.002)
    small = spans["execute_tool small"]
    assert small.attributes["firstchair.label"] == "model_x7k2"
    assert small.attributes["error.type"] == "rate_limited"
    assert small.status.status_code is StatusCode.ERROR
    assert not any("6*7" in str(value) for span in spans.values() for value in span.attributes.values())


def test_without_a_tracer_and_where_nothing_is_sampled_there_is_no_trace() -> None:
    assert play(None).trace_id == ""
    assert play(TracerProvider(sampler=ALWAYS_OFF).get_tracer("test")).trace_id == ""
