"""What orchestration costs beside its experts, and what many rollouts leave behind.

    python bench/orchestration.py                    64 at once, ms a step: mock experts here, and over HTTP
    python bench/orchestration.py --rollouts 10000   over HTTP, watching sockets, processes, files and memory

The policy is a script: ask two models at once, search, ask one more, answer: four steps, four dispatches. Its own
time is measured and taken off. Experts over HTTP are real: ``LiveExperts`` with its one client, a server in a process
of its own. The second form ends with exit code 1 when something leaked.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import multiprocessing.connection
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from firstchair.catalog.experts import Expert, ExpertCatalog, ProviderLimits
from firstchair.catalog.prices import PriceTable
from firstchair.chat.messages import Message, assistant_message
from firstchair.engines.base import Request, Sampling
from firstchair.engines.expert import ExpertAnswer, ExpertPool
from firstchair.engines.live_experts import LiveExperts
from firstchair.engines.scripted import ScriptedEngine
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.orchestration.environment import OrchestrationEnvironment
from firstchair.rollout.orchestration.run import Tally, run_orchestrations
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.orchestration.trajectory import Trajectory
from firstchair.rollout.rollouts import RolloutPlan
from firstchair.testing.orchestration import (
    USAGE,
    ExactGrader,
    ScriptedExperts,
    ScriptedTools,
    calls,
    model_on_offer,
    tool_on_offer,
)
from firstchair.testing.scripted_answers import Reply, Script
from firstchair.testing.scripted_upstream import scripted_upstream

NAMES = ("near_9b", "far_70b")
OFFER = (*(model_on_offer(name) for name in NAMES), tool_on_offer("web_search", "web_search"))
TEXT = "The total is 42. " * 40
EXPERT_S = (0.5, 1.5)
"""What a mock expert of this process takes, from and to."""
STEPS = 4
GROWTH_MB = 16
"""Resident memory may grow so much from a fifth of the run to its end."""


class Scripted:
    """The policy, and the time that its script takes."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def reply(self, request: Request) -> Message:
        """By how far the rollout has come."""
        start = time.process_time()
        done = sum(message.role == "assistant" for message in request.messages)
        question = {"input": f"{request.messages[1].text} Work it out, step {done}." + " Be exact." * 20}
        made = (
            calls((NAMES[0], question), (NAMES[1], question), text="Two opinions."),
            calls(("web_search", {"query": "total"}), text="A look outside."),
            calls((NAMES[0], question), text="Once more."),
            assistant_message("They agree.\nFINAL_ANSWER: 42"),
        )[done]
        self.spent_s += time.process_time() - start
        return made


@dataclass(frozen=True)
class Cost:
    """One run; milliseconds a step: CPU of this process without the script's, and what a rollout's clock shows beside
    its waiting for experts and tools.
    """

    rollouts: int
    cpu_ms: float
    added_ms: float
    took_s: float


def tasks(count: int) -> Iterator[OrchestrationTask]:
    """Problems, made as they are needed."""
    for number in range(count):
        problem = f"What is the total of bill {number}?"
        yield OrchestrationTask(task_id=f"t{number}", problem=problem, gold_answer="42")


async def play(
    experts: ExpertPool, count: int, concurrency: int, watch: Callable[[int], None] = lambda done: None
) -> tuple[Cost, Tally]:
    """``count`` rollouts, every one of them right."""
    script, tally = Scripted(), Tally()
    policy = EnginePolicy(ScriptedEngine(script.reply), None, Sampling(), record_tokens=False)
    policy.engine.seen = policy.engine.batches = _Nothing()  # type: ignore[attr-defined]

    def make() -> OrchestrationEnvironment:
        tools = ScriptedTools({"web_search": lambda arguments: TEXT})
        return OrchestrationEnvironment(lambda task, seed: OFFER, experts, tools, ExactGrader())

    added_s, cpu, start = 0.0, time.process_time(), time.perf_counter()
    plan = RolloutPlan(samples=1, seed=0, concurrency=concurrency, max_steps=8)
    async for found in run_orchestrations(make, tasks(count), policy, plan):
        tally.add(found)
        added_s += found.latency_s - waited_s(found)
        watch(tally.trajectories)
    steps = STEPS * count
    cpu_s = time.process_time() - cpu - script.spent_s
    return Cost(count, cpu_s / steps * 1e3, added_s / steps * 1e3, time.perf_counter() - start), tally


def waited_s(found: Trajectory) -> float:
    """For experts and tools; of calls made at once the longest."""
    longest: dict[int, float] = {}
    for one in found.dispatches:
        longest[one.step] = max(longest.get(one.step, 0.0), one.latency_s)
    return sum(longest.values())


class _Nothing(list[object]):
    """Keeps nothing: the scripted engine remembers its requests, and that is no leak of what is measured."""

    def append(self, _: object) -> None:
        """Forget it."""

    def extend(self, _: object) -> None:
        """Forget them."""


def serve(out: multiprocessing.connection.Connection) -> None:
    """Experts over HTTP until the other end closes; says where."""
    reply = Reply(text=TEXT, usage=USAGE)
    with scripted_upstream(Script((reply,), record=False)) as upstream:
        out.send(upstream.base_url)
        while out.poll(None):
            if out.recv() is None:
                return


@contextmanager
def expert_server() -> Iterator[str]:
    """The server in a process of its own."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    process.start()
    try:
        yield here.recv()
    finally:
        here.send(None)
        process.join(10)


def live(base_url: str, concurrency: int) -> LiveExperts:
    """The experts behind the server."""
    experts = tuple(Expert(model=name, category="local_open_source", summary="A model.") for name in NAMES)
    catalog = ExpertCatalog(
        experts=experts,
        endpoints=dict.fromkeys(NAMES, f"{base_url}/v1"),
        providers={"local": ProviderLimits(concurrency=concurrency)},
    )
    return LiveExperts(catalog, PriceTable.load(), {})


async def answer(expert: str, question: str) -> ExpertAnswer:
    """A mock expert of this process."""
    took_s = random.Random(expert + question).uniform(*EXPERT_S)
    await asyncio.sleep(took_s)
    return ExpertAnswer(expert, TEXT, served_model=expert, usage=USAGE, cost_nano=1, latency_s=took_s)


@dataclass(frozen=True)
class Held:
    """What this process holds."""

    memory_mb: float
    files: int
    sockets: int
    children: int
    threads: int
    asyncio_tasks: int
    temp_files: int

    @classmethod
    def now(cls) -> Held:
        """Right now, garbage collected."""
        gc.collect()
        me = psutil.Process()
        return cls(
            memory_mb=me.memory_info().rss / 2**20,
            files=me.num_fds(),
            sockets=len(me.net_connections()),
            children=len(me.children(recursive=True)),
            threads=me.num_threads(),
            asyncio_tasks=len(asyncio.all_tasks()) if _in_loop() else 0,
            temp_files=len(list(Path(tempfile.gettempdir()).iterdir())),
        )

    def __str__(self) -> str:
        return (
            f"{self.memory_mb:7.1f} MB, {self.files} open files, {self.sockets} sockets, {self.children} processes, "
            f"{self.threads} threads, {self.asyncio_tasks} asyncio tasks, {self.temp_files} temp files"
        )


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def leaks(early: Held, last: Held, before: Held, after: Held) -> list[str]:
    """What has grown: under load from a fifth of the run to its end, and from before it to when all is closed."""
    found = []
    if last.memory_mb - early.memory_mb > GROWTH_MB:
        found.append(f"memory: {early.memory_mb:.1f} MB, then {last.memory_mb:.1f}")
    for name in ("files", "sockets", "children", "asyncio_tasks", "temp_files"):
        if getattr(after, name) > getattr(before, name):
            found.append(f"{name}: {getattr(before, name)} before, {getattr(after, name)} after")
    for name in ("sockets", "children", "threads"):
        if getattr(last, name) > getattr(early, name):
            found.append(f"{name}: {getattr(early, name)} early, {getattr(last, name)} at the end")
    return found


async def soak(count: int, concurrency: int) -> list[str]:
    """Many rollouts over HTTP; what leaked."""
    seen: dict[int, Held] = {}
    with expert_server() as base_url:
        before = Held.now()
        experts = live(base_url, concurrency)

        def watch(done: int) -> None:
            if done % (count // 10) == 0:
                seen[done] = Held.now()
                print(f"{done:7,}: {seen[done]}", flush=True)

        cost, tally = await play(experts, count, concurrency, watch)
        await experts.close()
        after = Held.now()
    print(f"before: {before}\nafter:  {after}")
    print(f"{cost.rollouts:,} rollouts in {cost.took_s:.0f} s, {cost.cpu_ms:.2f} ms CPU a step; {dict(tally.ends)},")
    print(f"{dict(tally.grades)}, faults {dict(tally.faults)}, calls {sum(tally.dispatches.values()):,}")
    wrong = [] if tally.grades["correct"] == count else [f"{count - tally.grades['correct']} rollouts were not right"]
    early = seen[count // 10 * 2]
    return wrong + leaks(early, seen[max(seen)], before, after)


async def overhead(count: int, concurrency: int, rounds: int) -> None:
    """Ms a step."""
    mock = ScriptedExperts(answer)
    mock.asked = _Nothing()  # type: ignore[assignment]
    await report(f"mock experts, {EXPERT_S[0]} to {EXPERT_S[1]} s each", mock, count, concurrency, rounds)
    with expert_server() as base_url:
        experts = live(base_url, 2 * concurrency)
        await report("experts over HTTP that answer at once", experts, count, concurrency, rounds)
        await experts.close()


async def report(name: str, experts: ExpertPool, count: int, concurrency: int, rounds: int) -> None:
    """One line."""
    await play(experts, concurrency, concurrency)
    costs = [(await play(experts, count, concurrency))[0] for _ in range(rounds)]
    cpu, added = ([round(getattr(cost, field), 2) for cost in costs] for field in ("cpu_ms", "added_ms"))
    print(f"{name}: {min(cpu)} ms CPU a step, all rounds {cpu}; added to its clock: {added} ms", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, help="watch for leaks over so many, at least 10")
    parser.add_argument("--count", type=int, default=640, help="rollouts of one round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=64)
    options = parser.parse_args(arguments)
    if options.rollouts is None:
        asyncio.run(overhead(options.count, options.concurrency, options.rounds))
        return 0
    with tempfile.TemporaryDirectory() as own:
        # Others write to the machine's own directory too.
        tempfile.tempdir = os.environ["TMPDIR"] = own
        found = asyncio.run(soak(options.rollouts, options.concurrency))
    print("\n".join(["leaked:", *found]) if found else "nothing leaked")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
