import asyncio

import pytest

from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.recovery import RecoveryCase, TakingOver, recovery_case
from firstchair.rollout.desk.review import review
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.rollout.desk.teacher import Teacher
from firstchair.rollout.episodes import run_episodes
from firstchair.rollout.teacher_policy import TeacherPolicy

TASKS = make_tasks(5, 41)


def cases_of(mistakes: int, seed: int = 3) -> list[RecoveryCase]:
    async def made() -> list[RecoveryCase]:
        found = [await recovery_case(task, mistakes=mistakes, seed=seed) for task in TASKS]
        return [case for case in found if case is not None]

    return asyncio.run(made())


def played(cases, teacher, seed=3):
    async def collect():
        policy = TakingOver(TeacherPolicy(teacher), cases)
        tasks = [case.task for case in cases]
        return [episode async for episode in run_episodes(DeskEnvironment, tasks, policy, seed=seed)]

    return sorted(asyncio.run(collect()), key=lambda episode: episode.number)


@pytest.mark.parametrize("mistakes", [1, 2])
def test_a_case_holds_so_many_mistakes_and_ends_with_one(mistakes):
    cases = cases_of(mistakes)
    assert len(cases) >= 4
    for case, episode in zip(cases, played(cases, Teacher()), strict=True):
        wrong = [found for found in review(episode.session.messages) if found.dimension]
        assert tuple(found.dimension for found in wrong) == case.mistakes
        assert len(case.mistakes) == mistakes
        assert wrong[-1].index == len(case.actions) - 1


def test_an_expert_recovers_from_every_case():
    assert all(episode.completed for episode in played(cases_of(1), Teacher()))


def test_who_stops_at_once_recovers_from_none():
    class Stopping(Teacher):
        def act(self, messages, tools=()):
            from firstchair.chat.actions import Action

            return Action(kind="final_reply", text="Sorry.")

    assert not any(episode.completed for episode in played(cases_of(1), Stopping()))


def test_cases_depend_on_task_and_seed_alone():
    assert cases_of(1) == cases_of(1)
    assert cases_of(1) != cases_of(1, seed=4)


def test_a_task_that_takes_no_mistake_gives_no_case():
    """With every decision a mistake nobody completes the task."""
    assert asyncio.run(recovery_case(TASKS[0], mistakes=10_000, seed=3)) is None
