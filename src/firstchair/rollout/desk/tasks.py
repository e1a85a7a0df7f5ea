"""Tasks of the desk, generated from a seed: several scenes in one world, with distractors around them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

from firstchair.core.errors import ConfigError
from firstchair.rollout.desk import words
from firstchair.rollout.desk.phrases import TEMPLATES
from firstchair.rollout.desk.scenes import MAKERS, SKILL_OF, Scene, Stage, personal_fact, share_that
from firstchair.rollout.desk.task import DeskTask, DeskTurn, TaskCheck
from firstchair.rollout.desk.values import Values
from firstchair.rollout.desk.web import WEBS, document
from firstchair.rollout.desk.world import WorldSeed

DRAWN = tuple(name for name, (weight, _) in MAKERS.items() if weight)

LEADS = tuple(
    name
    for _, name in sorted(
        (turn / max(1, round(weight / 1.5)), name)
        for name, (weight, _) in MAKERS.items()
        if weight
        for turn in range(max(1, round(weight / 1.5)))
    )
)
"""Leading scenes in their order: heavier ones more often, each of them once among the first ``len(DRAWN)``."""

TURNS = (3, 3, 3, 4)
"""How many scenes a task has; drawn from."""


def make_tasks(n: int, seed: int) -> list[DeskTask]:
    """``n`` different tasks. Equal arguments give equal tasks; ``make_tasks(n)`` begins like ``make_tasks(m)``.

    Each scene of the table leads some task in turn, so that ``len(LEADS)`` tasks hold every one of them.
    Raises ``ConfigError`` for a negative ``n``.
    """
    if n < 0:
        raise ConfigError(f"n: found {n}; expected how many tasks to make, 0 or more")
    return [make_task(f"desk-{seed}-{number}", lead=LEADS[number % len(LEADS)]) for number in range(n)]


def make_task(task_id: str, *, lead: str) -> DeskTask:
    """One task, a pure function of its name and its leading scene."""
    rng = Random(task_id)
    values = Values(rng)
    stage = Stage(values, web_number=values.below(WEBS))
    names = _cast(rng, lead)
    turns: list[DeskTurn] = []
    checks: list[TaskCheck] = []
    for name in names:
        scene = MAKERS[name][1](stage)
        _add(stage, turns, checks, scene)
        found = scene.intent == "find_file" and scene.checks[0].kind == "reply_has"
        if found and values.chance(0.5):
            _add(stage, turns, checks, share_that(scene.checks[0].values[0]))
    _distract(stage)
    world = WorldSeed(
        date=values.date(),
        time=values.time(),
        web=stage.web_number,
        memory=tuple(rng.sample(stage.memory, len(stage.memory))),
        files={path: stage.files[path] for path in sorted(stage.files)},
        contacts=tuple(rng.sample(stage.contacts, len(stage.contacts))),
        mail=tuple(rng.sample(stage.mail, len(stage.mail))),
        events=tuple(stage.events),
        reminders=tuple(stage.reminders),
    )
    totals = (
        stage.added["reminders"] + len(stage.reminders),
        stage.added["events"] + len(stage.events),
        stage.added["sent"],
        stage.added["calls"],
    )
    checks.append(TaskCheck(kind="counts", values=tuple(str(total) for total in totals)))
    return DeskTask(task_id=task_id, world=world, turns=tuple(turns), checks=tuple(checks))


def _cast(rng: Random, lead: str) -> list[str]:
    """Which scenes a task plays: the lead among others, no scene and no skill twice."""
    names, skills = [lead], {SKILL_OF.get(lead, lead)}
    count = TURNS[int(rng.random() * len(TURNS))]
    weights = [MAKERS[name][0] for name in DRAWN]
    while len(names) < count:
        name = rng.choices(DRAWN, weights)[0]
        if name not in names and SKILL_OF.get(name, name) not in skills:
            names.append(name)
            skills.add(SKILL_OF.get(name, name))
    rng.shuffle(names)
    if rng.random() < 0.12:
        names.insert(0, "greeting")
    if rng.random() < 0.12:
        names.append("thanks")
    return names


def _add(stage: Stage, turns: list[DeskTurn], checks: list[TaskCheck], scene: Scene) -> None:
    """Put a scene behind the others: its request in words, with other sentences around it."""
    values, number = stage.values, len(turns)
    text, rows = scene.wording(values), scene.rows
    chat = rows[-1] == "chat"
    if not chat and rows[-1] not in ("remember", "preference") and values.chance(0.12):
        fact = personal_fact(stage)
        text = f"{values.pick(TEMPLATES['preference']).format(fact=fact)} {text}"
        rows = ("preference", *rows)
        checks.append(TaskCheck(kind="memory", values=(fact,)))
    elif not chat and values.chance(0.3):
        aside = values.pick(words.DISTRACTORS)
        text = f"{aside} {text}" if values.chance(0.5) else f"{text} {aside}"
    elif number == 0 and not chat and values.chance(0.2):
        text = f"{values.pick(('Hello!', 'Good morning!', 'Hi there!'))} {text}"
    turns.append(DeskTurn(user=text, rows=rows, answer=scene.answer, faults=scene.faults))
    checks.extend(msgspec.structs.replace(check, turn=number) if check.turn >= 0 else check for check in scene.checks)


def _distract(stage: Stage) -> None:
    """Things in the world that no turn is about."""
    values = stage.values
    for _ in range(3):
        stage.add_file(values.pick(("txt", "md", "pdf")), document(values.fields(2)))
    for _ in range(2):
        stage.person()
    if values.chance(0.7):
        thing = stage.fresh(values.thing)
        stage.memory.append(f"my {thing} is {values.thing_value(thing)}")


def rows_of(tasks: Sequence[DeskTask]) -> dict[str, int]:
    """Policy row → number of tasks that exercise it."""
    counts: dict[str, int] = {}
    for task in tasks:
        for row in task.rows:
            counts[row] = counts.get(row, 0) + 1
    return counts
