"""Models as tools, from problems to training data and a Pareto page.

    python examples/models_as_tools/run.py --out models-as-tools-run
    python examples/models_as_tools/run.py --out models-as-tools-run --policy my-policy=http://127.0.0.1:8000/v1 \
        --expert small-9b=http://127.0.0.1:8001/v1 --expert large-70b=http://127.0.0.1:8002/v1

Without endpoints the experts are simulated, and four fixed rules say whom to ask. With them the policy solves the
problems of ``tasks.jsonl`` by asking the experts. Either way every rollout is kept and graded, and ``firstchair``
commands do the rest; each is printed before it runs.

    tasks ─► rollouts, graded ─► trajectories stats ─► serialize (SFT records) ─► view (page)
                      └────────► pareto (page)
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import yaml

from firstchair.catalog.experts import tool_name
from firstchair.catalog.token_counts import NANO
from firstchair.chat.actions import Action
from firstchair.chat.messages import Message, Tool, ToolCall
from firstchair.core.atomic import write_bytes
from firstchair.core.progress import progress
from firstchair.data.orchestration.groups import read_groups
from firstchair.data.orchestration.rejection import sample_tasks
from firstchair.evals.pareto import RoutedTask
from firstchair.rollout.orchestration.run import run_orchestrations
from firstchair.rollout.orchestration.simulated import reference_of
from firstchair.rollout.orchestration.simulated_tasks import REFERENCE, simulated_tasks
from firstchair.rollout.orchestration.simulated_world import RULES, Rule, World, passed_on
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.orchestration.trajectory import Trajectory
from firstchair.rollout.rollouts import RolloutPlan
from firstchair.rollout.teacher_policy import TeacherPolicy

TASKS = Path(__file__).parent / "tasks.jsonl"
"""A few problems with known answers, for experts that are real."""

Run = Callable[[Sequence[str]], int]
"""Runs ``firstchair`` with these arguments; returns its exit code."""
Step = Callable[[Sequence[str]], None]
"""The same, and leaves with that code unless it is 0."""


class RuleActor:
    """Asks whom ``rule`` names, and says what it answered."""

    def __init__(self, world: World, rule: Rule):
        self._world, self._rule = world, rule
        self._tasks = {reference_of(task): task for task in world.tasks}

    def act(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Action:
        """The call, then the answer."""
        if messages[-1].role == "tool":
            return passed_on(messages[-1])
        task = self._tasks[re.findall(REFERENCE, messages[1].text)[0]]
        expert = self._rule(task, self._world.experts, self._world.seed)
        return Action(kind="tool_call", calls=(ToolCall.of("call_0", expert.name, {"input": reference_of(task)}),))


async def simulate(count: int, seed: int, out: Path) -> list[Path]:
    """Every rule plays the same tasks; one file of groups a rule, begun anew: another seed plays other tasks."""
    world = World(tuple(simulated_tasks(count, seed=seed)), seed=seed)
    plan = RolloutPlan(samples=1, seed=seed, max_steps=4)
    files = []
    with progress("simulating", count * len(RULES), unit="tasks") as bar:
        for name, rule in RULES.items():
            policy = TeacherPolicy(RuleActor(world, rule), name=name)

            async def play(
                tasks: Iterable[OrchestrationTask], policy: TeacherPolicy = policy
            ) -> AsyncGenerator[Trajectory, None]:
                async for found in run_orchestrations(world.environment(["named"]), tasks, policy, plan):
                    yield found

            files.append(out / f"{name.replace(' ', '-')}.jsonl")
            await sample_tasks(world.tasks, play, files[-1], samples=1, progress=bar, force=True)
    return files


@dataclass(frozen=True)
class Endpoint:
    """A model behind a server of OpenAI's chat wire."""

    model: str
    url: str

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """``MODEL=URL``. Raises ``argparse.ArgumentTypeError``."""
        model, found, url = text.partition("=")
        if not (model and found and url.startswith(("http://", "https://"))):
            raise argparse.ArgumentTypeError(
                f"found {text!r}; expected MODEL=URL, such as qwen-9b=http://host:8000/v1"
            )
        return cls(model, url)


def played_by_endpoints(
    policy: Endpoint, experts: Sequence[Endpoint], tasks: Path, out: Path, step: Step
) -> list[Path]:
    """``firstchair orchestrate run`` with a catalog of ``experts``."""
    names = {tool_name(expert.model): expert for expert in experts}
    catalog = {
        "experts": [
            {"model": expert.model, "category": "local_open_source", "summary": f"The model {expert.model}."}
            for expert in experts
        ],
        "endpoints": {name: expert.url for name, expert in names.items()},
    }
    setup = {"catalog": str(out / "experts.yaml"), "tools": {"tools": [{"type": "calculator"}]}}
    (out / "experts.yaml").write_text(yaml.safe_dump(catalog, sort_keys=False), encoding="utf-8")
    (out / "setup.yaml").write_text(yaml.safe_dump(setup, sort_keys=False), encoding="utf-8")
    groups = out / f"{tool_name(policy.model)}.jsonl"
    server = ("--base-url", policy.url, "--served-model", policy.model)
    step(["orchestrate", "run", str(tasks), "--out", str(groups), "--setup", str(out / "setup.yaml"), *server])
    return [groups]


def routed(groups: Sequence[Path], out: Path) -> Path:
    """What each rule made of each task, for the Pareto page: the oracle is no policy, it looks at the answers."""
    path = out / "outcomes.jsonl"
    rows = [
        RoutedTask(
            policy=name,
            task_id=one.task_id,
            correct=one.correct,
            cost_usd=None if one.expert_cost_nano is None else one.expert_cost_nano / NANO,
            latency_s=sum(call.latency_s for call in one.dispatches),  # simulated: nobody waited for it
            kind="bound" if name == "oracle" else "rule",
        )
        for name, file in zip(RULES, groups, strict=True)
        for group in read_groups(file)
        for one in group.trajectories
    ]
    write_bytes(path, b"".join(msgspec.json.encode(row) + b"\n" for row in rows), force=True)
    return path


def look_at(groups: Sequence[Path], outcomes: Sequence[Path], out: Path, step: Step) -> None:
    """Figures, training records and pages."""
    records = out / "records.jsonl"
    for path in groups:
        step(["trajectories", "stats", str(path)])
    step(["trajectories", "serialize", str(groups[-1]), "--out", str(records), "--force"])
    step(["trajectories", "view", str(groups[-1]), "--out", str(out / "trajectories.html"), "--force"])
    step(["pareto", *map(str, outcomes), "--out", str(out / "pareto.html"), "--force"])
    print(f"\nOpen {out / 'pareto.html'} and {out / 'trajectories.html'}; {records} is for `data.train` of a recipe.")


def command(arguments: Sequence[str]) -> int:
    """Print a command, run it and return its exit code."""
    print(f"\n$ firstchair {shlex.join(arguments)}", flush=True)
    return subprocess.run([sys.executable, "-m", "firstchair", *arguments], check=False).returncode


def main(arguments: Sequence[str] | None = None, run: Run = command) -> None:
    """Play, then look at it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200, help="simulated tasks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policy", type=Endpoint.parse, metavar="MODEL=URL", help="who decides whom to ask")
    parser.add_argument("--expert", type=Endpoint.parse, metavar="MODEL=URL", action="append", default=[])
    parser.add_argument("--tasks", type=Path, default=TASKS, help="problems for the experts at endpoints")
    options = parser.parse_args(arguments)
    if len(options.expert) < 2 if options.policy else options.expert:
        parser.error("give --policy and at least two --expert, or neither")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"argument --out: {options.out}: {error.strerror}; expected a directory, made when missing")

    def step(arguments: Sequence[str]) -> None:
        if code := run(arguments):
            sys.exit(code)

    if options.policy is None:
        groups = asyncio.run(simulate(options.count, options.seed, options.out))
        outcomes = [routed(groups, options.out)]
    else:
        groups = outcomes = played_by_endpoints(options.policy, options.expert, options.tasks, options.out, step)
    look_at(groups, outcomes, options.out, step)


if __name__ == "__main__":
    main()
