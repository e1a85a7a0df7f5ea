"""The simulated experts as a world to act in: how they are shown, the environment, and policies that follow a rule.

    named       real names, what each is good at, price and latency
    renamed     made-up names in random order, everything else as above
    anonymised  a random label; class, size and cost tier alone (``catalog.offers.anonymised``)

A policy that is trained on the last two has nothing to hold on to but what the descriptions say.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from firstchair.catalog.experts import PARAMETERS
from firstchair.catalog.offers import Offer, OfferedTool, described
from firstchair.catalog.offers import anonymised as without_names
from firstchair.chat.actions import Action
from firstchair.chat.messages import Message, Tool, ToolCall
from firstchair.core.seeds import seed_of
from firstchair.rollout.orchestration.environment import OrchestrationEnvironment
from firstchair.rollout.orchestration.final_answer import MARKER
from firstchair.rollout.orchestration.offer import Offered
from firstchair.rollout.orchestration.simulated import (
    EXPERTS,
    SimulatedExpert,
    SimulatedGrader,
    SimulatedPool,
    answer_of,
    reference_of,
)
from firstchair.rollout.orchestration.simulated_tasks import REFERENCE
from firstchair.rollout.orchestration.task import OrchestrationTask

Presentation = Literal["named", "renamed", "anonymised"]

SYSTEM = "Ask one model, then answer."
"""Short: the model that learns here is tiny."""

_SYLLABLES = ("ka", "vo", "ri", "tam", "sel", "dor", "ni", "bru", "fa", "lem", "pio", "zu")


@dataclass(frozen=True)
class World:
    """Tasks and the experts that can be asked about them."""

    tasks: tuple[OrchestrationTask, ...]
    seed: int
    """Of the answers."""
    experts: tuple[SimulatedExpert, ...] = EXPERTS

    def environment(self, presentations: Sequence[Presentation]) -> Callable[[], OrchestrationEnvironment]:
        """Makes environments; each rollout has one of ``presentations``, by task and seed."""
        pool, grader = SimulatedPool(self.tasks, seed=self.seed, experts=self.experts), SimulatedGrader()

        def offer_of(task: OrchestrationTask, seed: int) -> tuple[Offered, ...]:
            rng = random.Random(seed_of(seed, "offer", task.task_id))
            return presented(self.experts, rng.choice(presentations), rng)

        return lambda: OrchestrationEnvironment(offer_of, pool, None, grader, system=SYSTEM)


def presented(
    experts: Sequence[SimulatedExpert], presentation: Presentation, rng: random.Random
) -> tuple[Offered, ...]:
    """What a policy is offered of ``experts``."""
    offered = [_offered(expert, expert.name) for expert in experts]
    if presentation == "renamed":
        rng.shuffle(offered)
        labels = rng.sample(range(len(_SYLLABLES) ** 2 * 90), len(offered))
        offered = [
            replace(one, tool=msgspec.structs.replace(one.tool, name=_made_up(label)))
            for one, label in zip(offered, labels, strict=True)
        ]
    elif presentation == "anonymised":
        offered = list(without_names(Offer(tuple(offered)), rng).offered)
    return tuple(Offered(one.tool, one.name, one.kind) for one in offered)


def _offered(expert: SimulatedExpert, label: str) -> OfferedTool:
    tool = Tool(name=label, description=described(expert.spec, expert.price), parameters=PARAMETERS["model"])
    return OfferedTool(tool, expert.name, "model", expert.spec.category, expert.price, expert.spec)


def _made_up(number: int) -> str:
    """A name such as ``vori_31b``; other numbers have other names."""
    pair, size = divmod(number, 90)
    first, second = divmod(pair, len(_SYLLABLES))
    return f"{_SYLLABLES[first]}{_SYLLABLES[second]}_{size + 10}b"


# --- rules to compare with, and to make demonstrations by -----------------------------------------------------------

Rule = Callable[[OrchestrationTask, Sequence[SimulatedExpert], int], SimulatedExpert]
"""Which expert is asked about a task; the number is the seed of the answers, or of a rule's own draws."""


def strongest(task: OrchestrationTask, experts: Sequence[SimulatedExpert], seed: int) -> SimulatedExpert:
    """Always the dearest, which is good at everything."""
    return max(experts, key=lambda expert: expert.price.output)


def cheapest(task: OrchestrationTask, experts: Sequence[SimulatedExpert], seed: int) -> SimulatedExpert:
    """Always the cheapest."""
    return min(experts, key=lambda expert: expert.price.output)


def at_random(task: OrchestrationTask, experts: Sequence[SimulatedExpert], seed: int) -> SimulatedExpert:
    """Any, each as often."""
    return random.Random(seed_of(seed, "random rule", task.task_id)).choice(experts)


def oracle(task: OrchestrationTask, experts: Sequence[SimulatedExpert], seed: int) -> SimulatedExpert:
    """The cheapest that is right, by looking at the answers; where none is, the cheapest. No policy can do better."""
    by_price = sorted(experts, key=lambda expert: expert.price.output)
    return next((one for one in by_price if is_right(one, task, seed)), by_price[0])


RULES: dict[str, Rule] = {
    "always strongest": strongest,
    "always cheapest": cheapest,
    "random": at_random,
    "oracle": oracle,
}


def is_right(expert: SimulatedExpert, task: OrchestrationTask, seed: int) -> bool:
    """Whether ``expert`` solves ``task``."""
    return str(task.gold_answer) in re.findall(r"\d+", answer_of(expert, task, seed).text)


class Demonstrator:
    """An ``Actor`` that reads the problem aloud, asks a model and says what it answered.

    Which one is drawn by ``seed`` and task, each as often: what learns from it learns the form and no routing.
    ``dearest`` asks the best instead.
    """

    def __init__(self, tasks: Sequence[OrchestrationTask], *, seed: int = 0, dearest: bool = False):
        self._tasks = {reference_of(task): task for task in tasks}
        self._seed, self._dearest = seed, dearest

    def act(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Action:
        """The call, then the answer."""
        if messages[-1].role == "tool":
            return passed_on(messages[-1])
        task = self._tasks[re.findall(REFERENCE, messages[1].text)[0]]
        tool = _dearest(tools) if self._dearest else self._drawn(task, tools)
        call = ToolCall.of("call_0", tool.name, {"input": reference_of(task)})
        return Action(kind="tool_call", calls=(call,), thinking=f"{read_aloud(task)}: {keyword(tool)}")

    def _drawn(self, task: OrchestrationTask, tools: Sequence[Tool]) -> Tool:
        return random.Random(seed_of(self._seed, "demonstration", task.task_id)).choice(tools)


def passed_on(heard: Message) -> Action:
    """The reply that says what a model answered."""
    found = re.findall(r"\d+", heard.text)
    return Action(kind="final_reply", text=f"{MARKER} {found[-1] if found else 'unknown'}")


def read_aloud(task: OrchestrationTask) -> str:
    """What there is to notice about a problem, in as few words as there are."""
    wish = task.meta["wish"]
    return f"{task.difficulty} {task.domain}{f' {wish}' if wish else ''}"


def keyword(tool: Tool) -> str:
    """The word of a description that tells its tool from the others: ``small``, ``maths``, ``frontier``, …"""
    words = (tool.description or "").split()
    return (words[2] if words[:2] == ["Another", "model:"] else words[0]).lower()


def _dearest(tools: Sequence[Tool]) -> Tool:
    return next(tool for tool in tools if keyword(tool) in ("large", "frontier"))
