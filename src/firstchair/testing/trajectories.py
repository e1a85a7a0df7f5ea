"""Groups of trajectories as a rollout leaves them: dear and cheap experts, right and wrong answers, faults, nudges.

Equal seeds give equal groups. Nothing is run: tests of what reads trajectories need no model.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from firstchair.catalog.experts import DispatchKind
from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.messages import Message, Tool, ToolCall, assistant_message, text_message, tool_result
from firstchair.data.orchestration.groups import Group
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.orchestration.trajectory import Dispatch, Trajectory, TrajectoryEnd

EXPERTS = {
    "qwen3_5_9b": (100, 150, 0.45),
    "qwen3_6_27b": (195, 1_560, 0.6),
    "qwen3_5_397b": (385, 2_450, 0.75),
    "claude_opus_4_8": (5_000, 25_000, 0.95),
}
"""Name → nano-USD per token in and out, and how often it is right."""
DOMAINS = ("math", "code", "science", "qa", "medical")
SYSTEM = "You lead other models and tools to the answer of one problem. End with one line: FINAL_ANSWER: <the answer>"
NUDGE = "You have not asked any model yet. Ask at least one about this problem before you answer."
FAULTS = ("", "", "", "", "", "", "undelegated", "error", "shouting", "repeating", "unfinished", "broken")


def clean_trajectory(**changes: Any) -> Trajectory:
    """A correct trajectory that passes the clean gate: an expert, a tool, an answer. ``changes`` replace fields."""
    task = OrchestrationTask(task_id="t", problem="What is 6 times 7?", gold_answer="42", domain="math")
    return msgspec.structs.replace(_trajectory(task, 0, ("qwen3_5_9b",), "42", correct=True), **changes)


def dispatched(name: str = "qwen3_5_9b", kind: DispatchKind = "model", **changes: Any) -> Dispatch:
    """A dispatch that went well."""
    fields: dict[str, Any] = {"step": 0, "label": name, "name": name, "kind": kind, "latency_s": 1.5}
    if kind == "model":
        fields |= {"usage": TokenCounts(input=200, output=300), "cost_nano": 65_000, "served_model": name}
    return Dispatch(**(fields | changes))


def trajectory_groups(count: int, *, samples: int = 8, seed: int = 0, words: int = 30) -> list[Group]:
    """``count`` groups over several domains; observations are about ``words`` words long."""
    return [_group(number, samples, random.Random(seed * 1_000_003 + number), words) for number in range(count)]


def _group(number: int, samples: int, rng: random.Random, words: int) -> Group:
    left, right = rng.randrange(10, 99), rng.randrange(10, 99)
    task = OrchestrationTask(
        task_id=f"made-{number}",
        problem=f"A depot holds {left} crates of {right} parts each. How many parts are there if x < {number}?",
        gold_answer=str(left * right),
        domain=DOMAINS[number % len(DOMAINS)],
        difficulty=("easy", "hard")[number % 2],
        dataset="made",
    )
    return Group(task=task, trajectories=tuple(_sampled(task, sample, rng, words) for sample in range(samples)))


def _sampled(task: OrchestrationTask, sample: int, rng: random.Random, words: int) -> Trajectory:
    fault = rng.choice(FAULTS)
    experts = tuple(rng.sample(sorted(EXPERTS), rng.choice((1, 1, 2))))
    correct = any(rng.random() < EXPERTS[name][2] for name in experts)
    gold = task.gold_answer or ""
    answer = gold if correct else str(int(gold) + rng.randrange(1, 99))
    labels = {f"model_{place}x{sample}k": name for place, name in enumerate(EXPERTS)} if sample % 2 else {}
    if fault == "broken":
        return Trajectory(
            task_id=task.task_id,
            sample=sample,
            messages=_opening(task),
            tools=offered(labels),
            labels=labels,
            end=TrajectoryEnd.FAILED,
            error="ConnectionError: the policy's server went away",
            policy_model="made-policy",
        )
    talk = " ".join(rng.choice(("crates", "parts", "so", "each", "holds", "times", "then")) for _ in range(words))
    if fault == "unfinished":
        return _trajectory(
            task, sample, experts, "", correct=False, talk=talk, labels=labels, end=TrajectoryEnd.MAX_STEPS
        )
    return _trajectory(
        task,
        sample,
        () if fault == "undelegated" else experts,
        "THE ANSWER IS FORTY TWO" if fault == "shouting" else answer,
        correct=correct and fault != "shouting",
        talk=talk,
        labels=labels,
        fault=fault,
    )


def _trajectory(
    task: OrchestrationTask,
    sample: int,
    experts: tuple[str, ...],
    answer: str,
    *,
    correct: bool,
    talk: str = "each crate holds as many",
    labels: dict[str, str] | None = None,
    fault: str = "",
    end: TrajectoryEnd = TrajectoryEnd.ANSWERED,
) -> Trajectory:
    labels = labels or {}
    label_of = {name: label for label, name in labels.items()}
    messages: list[Message] = [*_opening(task)]
    dispatches: list[Dispatch] = []
    if fault == "undelegated":
        messages += [assistant_message("I can do this in my head."), text_message("user", NUDGE)]
    for step, name in enumerate(experts):
        call = ToolCall.of(f"call_{step}", label_of.get(name, name), {"input": task.problem})
        failed = fault == "error" and step == 0
        said = "No answer: it took too long." if failed else f"{talk}. I come to {answer or 'no end'}."
        thought = "One line.\n" * 5 if fault == "repeating" else "The instructions say to ask a model.\nMultiply."
        messages += [
            assistant_message("Ask a model that multiplies.", thinking=thought, calls=(call,)),
            tool_result(call, said, is_error=failed),
        ]
        price_in, price_out, _ = EXPERTS[name]
        used = TokenCounts(input=len(task.problem) // 4, output=len(said) // 4)
        cost = used.input * price_in + used.output * price_out
        dispatches.append(
            dispatched(
                name,
                step=step,
                label=call.name,
                usage=used,
                cost_nano=cost,
                latency_s=len(said) / 400,
                error_kind="timeout" if failed else None,
            )
        )
    check = ToolCall.of("check", "calculator", {"expression": "6 * 7"})
    messages += [assistant_message("Check it.", calls=(check,)), tool_result(check, f"value: {answer or 'none'}")]
    dispatches.append(dispatched("calculator", "other", step=len(experts), latency_s=0.01))
    if answer:
        messages.append(assistant_message(f"Both agree: \\boxed{{{answer}}}.\nFINAL_ANSWER: {answer}"))
    return Trajectory(
        task_id=task.task_id,
        sample=sample,
        messages=tuple(messages),
        tools=offered(labels),
        labels=labels,
        end=end,
        final_answer=answer,
        dispatches=tuple(dispatches),
        nudges={"no_delegation": 1} if fault == "undelegated" else {},
        prompt_tokens=sum(len(message.text) for message in messages) // 4,
        completion_tokens=60 * (len(experts) + 2),
        policy_model="made-policy",
        latency_s=sum(one.latency_s for one in dispatches) + 2,
        correct=correct,
        graded_by="math",
    )


def _opening(task: OrchestrationTask) -> tuple[Message, ...]:
    return text_message("system", SYSTEM), text_message("user", f"Problem: {task.problem}")


def offered(labels: dict[str, str]) -> tuple[Tool, ...]:
    """The tools that a policy sees: experts under their labels, and a calculator."""
    label_of = {name: label for label, name in labels.items()}

    def tool(name: str, description: str, field: str) -> Tool:
        schema = {"type": "object", "properties": {field: {"type": "string"}}, "required": [field]}
        return Tool(name=name, description=description, parameters=schema)

    models = [
        tool(label_of.get(name, name), f"Another model. Pricing: ${price[0] / 1000:.2f}/1M input.", "input")
        for name, price in EXPERTS.items()
    ]
    return (*models, tool("calculator", "Works out arithmetic.", "expression"))
