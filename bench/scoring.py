"""Scoring: decisions a second on one core, beside what one would write first, all in one run.

    python bench/scoring.py [--tasks 300] [--rounds 5]

Gold comes from the desk's teacher; the replies are a mix of equal, reworded, wrong, parallel-stop and malformed ones.
Peers: canonical JSON text equality (``json.loads`` and ``json.dumps(sort_keys=True)``), and, where it is installed,
``deepdiff`` with schema validation by ``jsonschema`` (what a typed comparison costs off the shelf). Neither gives
a verdict at two levels with its rule and field.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from firstchair.catalog.call_rules import Matchers
from firstchair.catalog.verdict import Scorer, score
from firstchair.chat.actions import Action, ParsedReply
from firstchair.chat.messages import ToolCall
from firstchair.rollout.desk.definitions import desk_catalog
from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.rollout.desk.teacher import Teacher
from firstchair.rollout.episodes import run_episodes
from firstchair.rollout.teacher_policy import TeacherPolicy
from firstchair.traces.decisions import DecisionPoint, decision_points


async def gold_decisions(tasks: int) -> list[DecisionPoint]:
    """The teacher's decisions as verified gold."""
    found: list[DecisionPoint] = []
    policy = TeacherPolicy(Teacher(seed=1))
    async with aclosing(run_episodes(DeskEnvironment, make_tasks(tasks, 11), policy, seed=0)) as episodes:
        async for episode in episodes:
            for point in decision_points(episode.session):
                found.append(msgspec.structs.replace(point, gold=point.observed, verified=True))
    return found


def reply_to(point: DecisionPoint, rng: random.Random, tools: Sequence[str]) -> ParsedReply:
    """A candidate's reply: 40% equal, 20% equal in other text, 20% wrong arguments, the rest wrong otherwise."""
    draw, calls = rng.random(), point.observed.calls
    if draw < 0.4 or not calls:
        return ParsedReply(calls=calls, text=point.observed.text)
    values: list[dict[str, Any]] = [call.parsed() or {} for call in calls]
    if draw < 0.6:
        turned = [dict(reversed(value.items())) for value in values]
        return ParsedReply(
            calls=tuple(ToolCall.of("c", call.name, value) for call, value in zip(calls, turned, strict=True))
        )
    if draw < 0.8:
        changed = [{key: f"{item} x" if isinstance(item, str) else item for key, item in v.items()} for v in values]
        return ParsedReply(
            calls=tuple(ToolCall.of("c", call.name, value) for call, value in zip(calls, changed, strict=True))
        )
    if draw < 0.9:
        return ParsedReply(calls=(ToolCall.of("c", rng.choice(tools), values[0]),))
    if draw < 0.95:
        return ParsedReply(text="Done.")
    return ParsedReply(calls=(ToolCall(id="c", name=calls[0].name, arguments='{"a": '),))


Pair = tuple[DecisionPoint, ParsedReply]


def naive(pairs: Sequence[Pair]) -> None:
    """Equality of canonical JSON text."""
    for point, reply in pairs:
        try:
            made = [(call.name, json.dumps(json.loads(call.arguments), sort_keys=True)) for call in reply.calls]
        except ValueError:
            continue
        gold = [(call.name, json.dumps(json.loads(call.arguments), sort_keys=True)) for call in point.observed.calls]
        _ = made == gold


def typed_peer(schemas: dict[str, Any]) -> Callable[[Sequence[Pair]], None] | None:
    """Schema validation and a deep comparison from the shelf."""
    try:
        from deepdiff import DeepDiff
    except ImportError:
        return None
    from jsonschema import Draft202012Validator

    validators = {name: Draft202012Validator(schema) for name, schema in schemas.items()}

    def run(pairs: Sequence[Pair]) -> None:
        for point, reply in pairs:
            for call, gold in zip(reply.calls, point.observed.calls, strict=False):
                try:
                    value = json.loads(call.arguments)
                except ValueError:
                    continue
                if call.name in validators and validators[call.name].is_valid(value):
                    DeepDiff(json.loads(gold.arguments), value, ignore_numeric_type_changes=True)

    return run


def rates(runs: dict[str, Callable[[], None]], count: int, rounds: int) -> dict[str, float]:
    """Decisions a second by name, the best of ``rounds``; the runs take turns, so that they share the weather."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - started)
    return {name: count / seconds for name, seconds in best.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    catalog = desk_catalog()
    tools = catalog.tool_schemas()
    decisions = asyncio.run(gold_decisions(arguments.tasks))
    rng = random.Random(0)
    names = [tool.name for tool in tools]
    pairs = [(point, reply_to(point, rng, names)) for point in decisions]
    actions = [(point, reply.action()) for point, reply in pairs]
    matchers = Matchers.of(catalog.matchers())
    scorer = Scorer(tools, matchers)

    def with_scorer(todo: Sequence[tuple[DecisionPoint, ParsedReply | Action]]) -> None:
        for point, reply in todo:
            scorer.score(point, reply)

    def one_by_one(todo: Sequence[Pair]) -> None:
        for point, reply in todo:
            score(point, reply, matchers, tools)

    verdicts = Counter(str(scorer.score(point, reply).lenient) for point, reply in pairs)
    print(f"{len(pairs):,} decisions: {dict(verdicts)}")
    runs = {
        "Scorer, parsed replies": lambda: with_scorer(pairs),
        "Scorer, actions (schema checked)": lambda: with_scorer(actions),
        "score(), one call each": lambda: one_by_one(pairs),
        "canonical text equality": lambda: naive(pairs),
    }
    peer = typed_peer({tool.name: tool.parameters for tool in tools})
    if peer is None:
        print("deepdiff is not installed; not compared with it")
    else:
        runs["jsonschema and deepdiff"] = lambda: peer(pairs)
    found = rates(runs, len(pairs), arguments.rounds)
    ours = found["Scorer, parsed replies"]
    for name, value in found.items():
        print(f"{name:<34} {value:>10,.0f} decisions/s   {ours / value:>6.2f}")
    print("last column: how many times as fast the first line is")


if __name__ == "__main__":
    main()
