"""Tasks for simulated experts: a problem tells its domain, its difficulty and its user's wish in varied words."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import msgspec

from firstchair.core.seeds import seed_of
from firstchair.rollout.orchestration.task import OrchestrationTask

DIFFICULTIES = ("easy", "medium", "hard")
SHARES = (0.4, 0.3, 0.3)
"""Of the difficulties among tasks."""
DOMAINS = ("math", "code", "science")
REFERENCE = r"\d{5}"
"""How a problem names itself, so that an expert that is given the number knows the task."""

_TOPICS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "math": (
            "an integral", "a geometry proof", "a sum of series", "an algebra exercise", "a probability puzzle",
            "a number theory question", "a matrix problem", "an equation",
        ),
        "code": (
            "a sorting function", "a parser bug", "a database query", "a race condition", "a regular expression",
            "a unit test", "a memory leak", "a web server",
        ),
        "science": (
            "a chemistry reaction", "a question on cells", "a physics experiment", "a genetics cross",
            "the orbit of a moon", "an acid titration", "a fossil find", "a weather pattern",
        ),
    }
)  # fmt: skip
_LEVELS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "easy": ("simple", "easy", "for beginners", "a warm-up", "routine", "from a school book"),
        "medium": ("moderate", "not trivial", "of average difficulty", "second-year level", "needing thought"),
        "hard": ("very hard", "fiendish", "olympiad level", "research level", "notoriously difficult", "for experts"),
    }
)  # fmt: skip
_FRAMES = (
    "Task {number}: {topic}, {level}.",
    "Task {number}, {level}: {topic}.",
    "{Topic}, {level}; this is task {number}.",
    "I have {topic} here, task {number}. It is {level}.",
)

Wish = Literal["", "accuracy", "cost", "latency"]

PREFERENCES: Mapping[Wish, Mapping[str, float]] = MappingProxyType(
    {
        "": MappingProxyType({}),
        "accuracy": MappingProxyType({"accuracy": 1.0}),
        "cost": MappingProxyType({"accuracy": 0.5, "cost": 1.0}),
        "latency": MappingProxyType({"accuracy": 0.5, "latency": 1.0}),
    }
)
"""Name of a wish → the vector P that it stands for."""
_WISHES: Mapping[Wish, tuple[str, ...]] = MappingProxyType(
    {
        "": ("",),
        "accuracy": ("It must be right.", "Accuracy comes first.", "Money is no object.", "No mistakes, please."),
        "cost": ("Keep it cheap.", "Spend little.", "My budget is small.", "Save money."),
        "latency": ("Be quick.", "I am in a hurry.", "Speed matters most.", "Answer fast."),
    }
)


def simulated_task(index: int, seed: int, *, wishes: Sequence[Wish] = ("",)) -> OrchestrationTask:
    """The task at ``index`` of a ``seed``'s endless row; its wish is one of ``wishes`` (keys of ``PREFERENCES``)."""
    rng = random.Random(seed_of(seed, "simulated task", index))
    domain, difficulty = rng.choice(DOMAINS), rng.choices(DIFFICULTIES, SHARES)[0]
    number, gold = f"{rng.randrange(10**5):05d}", str(rng.randrange(100, 1000))
    topic = rng.choice(_TOPICS[domain])
    problem = rng.choice(_FRAMES).format(
        number=number, topic=topic, Topic=topic[0].upper() + topic[1:], level=rng.choice(_LEVELS[difficulty])
    )
    wish = rng.choice(wishes)
    said = _said(wish, rng)
    return OrchestrationTask(
        task_id=f"sim-{seed}-{index}",
        problem=f"{problem} {said}".rstrip(),
        gold_answer=gold,
        domain=domain,
        difficulty=difficulty,
        dataset="simulated",
        preference=dict(PREFERENCES[wish]),
        meta={"reference": number, "wish": wish, "problem": problem},
    )


def simulated_tasks(count: int, seed: int, *, wishes: Sequence[Wish] = ("",)) -> list[OrchestrationTask]:
    """The first ``count`` tasks of ``seed`` whose references differ."""
    found: dict[str, OrchestrationTask] = {}
    index = 0
    while len(found) < count:
        task = simulated_task(index, seed, wishes=wishes)
        found.setdefault(task.meta["reference"], task)
        index += 1
    return list(found.values())


def with_wish(task: OrchestrationTask, wish: Wish, seed: int) -> OrchestrationTask:
    """The same task for a user who wants something else."""
    said = _said(wish, random.Random(seed_of(seed, task.task_id, wish)))
    return msgspec.structs.replace(
        task,
        problem=f"{task.meta['problem']} {said}".rstrip(),
        preference=dict(PREFERENCES[wish]),
        meta={**task.meta, "wish": wish},
    )


def _said(wish: Wish, rng: random.Random) -> str:
    return rng.choice(_WISHES[wish])
