from __future__ import annotations

import asyncio
import random
from collections import Counter

import msgspec
import pytest

from firstchair.catalog.offers import brand_in
from firstchair.core.errors import ConfigError
from firstchair.rollout.episodes import Episode, run_episodes
from firstchair.rollout.orchestration.simulated import (
    EXPERTS,
    SimulatedGrader,
    SimulatedPool,
    answer_of,
    reference_of,
)
from firstchair.rollout.orchestration.simulated_tasks import (
    DIFFICULTIES,
    PREFERENCES,
    simulated_task,
    simulated_tasks,
    with_wish,
)
from firstchair.rollout.orchestration.simulated_world import (
    RULES,
    Demonstrator,
    Presentation,
    World,
    is_right,
    keyword,
    presented,
)
from firstchair.rollout.teacher_policy import TeacherPolicy

TASKS = simulated_tasks(1500, 3, wishes=tuple(PREFERENCES))


def test_an_answer_follows_from_seed_expert_and_task_whatever_was_asked_before():
    async def ask(tasks, seed: int) -> list[str]:
        pool = SimulatedPool(TASKS, seed=seed)
        return [(await pool.ask("solo_9b", f"Solve {reference_of(task)}.")).text for task in tasks]

    first = asyncio.run(ask(TASKS[:50], 0))
    assert asyncio.run(ask(TASKS[49::-1], 0))[::-1] == first
    assert asyncio.run(ask(TASKS[:50], 1)) != first


def test_experts_are_right_as_often_as_they_are_said_to_be():
    for expert in EXPERTS:
        for domain in ("math", "science"):
            for difficulty in DIFFICULTIES:
                mine = [task for task in TASKS if (task.domain, task.difficulty) == (domain, difficulty)]
                share = sum(is_right(expert, task, 0) for task in mine) / len(mine)
                assert share == pytest.approx(expert.chance(domain, difficulty), abs=0.1)


def test_an_answer_costs_what_its_tokens_do_and_takes_its_time():
    for expert in EXPERTS:
        answers = {task.difficulty: answer_of(expert, task, 0) for task in TASKS}
        for answer in answers.values():
            assert answer.cost_nano == expert.price.cost_nano(answer.usage)
        easy, hard = answers["easy"], answers["hard"]
        assert easy.usage.output < hard.usage.output
        assert easy.latency_s < hard.latency_s


def test_a_question_that_names_no_task_is_asked_back_and_an_unknown_expert_is_refused():
    pool = SimulatedPool(TASKS, seed=0)
    answer = asyncio.run(pool.ask("summit_1", "What is the answer?"))
    assert (answer.text, answer.error) == ("Which task? Give me its number.", None)
    assert answer.cost_nano == 5000 * 300 + 25000 * 40
    with pytest.raises(ConfigError, match="summit_2"):
        asyncio.run(pool.ask("summit_2", "?"))


def test_tasks_are_a_function_of_seed_and_index_and_tell_domain_difficulty_and_wish_in_varied_words():
    assert simulated_tasks(20, 3, wishes=tuple(PREFERENCES)) == TASKS[:20]
    assert simulated_task(5, 4) != simulated_task(5, 3)
    assert len({reference_of(task) for task in TASKS}) == len(TASKS)
    shares = Counter(task.difficulty for task in TASKS)
    assert shares["easy"] / len(TASKS) == pytest.approx(0.4, abs=0.05)
    for task in TASKS[:100]:
        assert reference_of(task) in task.problem
        assert task.gold_answer not in task.problem.replace(reference_of(task), "")
        assert task.preference == PREFERENCES[task.meta["wish"]]
    # The same wish in other words, the same level in other words.
    for part in ("difficulty", "domain"):
        kinds = {getattr(task, part) for task in TASKS}
        worded = {kind: {t.meta["problem"] for t in TASKS if getattr(t, part) == kind} for kind in kinds}
        assert all(len(texts) > 100 for texts in worded.values())


def test_the_same_task_for_another_user_differs_in_its_last_words_and_its_preference_alone():
    task = with_wish(TASKS[0], "latency", 0)
    assert task.problem.startswith(TASKS[0].meta["problem"])
    assert task.preference == PREFERENCES["latency"]
    assert msgspec.structs.replace(
        with_wish(task, TASKS[0].meta["wish"], 0), problem="", meta={}
    ) == msgspec.structs.replace(TASKS[0], problem="", meta={})


@pytest.mark.parametrize("presentation", ["named", "renamed", "anonymised"])
def test_an_offer_shows_every_expert_under_the_names_that_its_presentation_gives(presentation: Presentation):
    offers = [presented(EXPERTS, presentation, random.Random(seed)) for seed in range(20)]
    for offer in offers:
        assert sorted(one.name for one in offer) == sorted(expert.name for expert in EXPERTS)
    labels = {one.label for offer in offers for one in offer}
    real = {expert.name for expert in EXPERTS}
    assert labels == real if presentation == "named" else not labels & real
    shown = [one.tool.description or "" for one in offers[0]]
    assert all(("Pricing: $" in text) == (presentation != "anonymised") for text in shown)
    if presentation != "named":
        assert len({tuple(one.name for one in offer) for offer in offers}) > 1, "their order tells who they are"
    if presentation == "anonymised":
        assert not any(brand_in(text) or "aths" in text for text in shown)


def played(presentations: tuple[Presentation, ...], demonstrator: Demonstrator, count: int = 60) -> list[Episode]:
    async def play() -> list[Episode]:
        world = World(tuple(TASKS), 0)
        running = run_episodes(world.environment(presentations), TASKS[:count], TeacherPolicy(demonstrator))
        return [episode async for episode in running]

    return asyncio.run(play())


def test_demonstrations_ask_every_expert_as_often_and_say_what_it_says():
    episodes = played(("named", "renamed", "anonymised"), Demonstrator(TASKS))
    asked: Counter[str] = Counter()
    for episode in episodes:
        assert episode.outcome is not None
        asked.update(name for name, n in episode.outcome.measures.items() if name.startswith("calls.") and n)
        assert episode.outcome.measures["calls"] == 1
        assert (episode.steps, episode.malformed) == (2, 0)
    assert len(asked) == len(EXPERTS)
    assert max(asked.values()) < 30
    assert 0 < sum(episode.outcome.completed for episode in episodes) < 60


def test_the_dearest_is_found_by_its_description_alone():
    episodes = played(("named", "renamed", "anonymised"), Demonstrator(TASKS, dearest=True), 20)
    assert all(episode.outcome.measures["calls.summit_1"] == 1 for episode in episodes)
    words = {keyword(one.tool) for one in presented(EXPERTS, "named", random.Random(0))}
    assert words == {"small", "maths", "code", "large"}


def test_no_rule_beats_the_oracle_and_the_random_one_lies_between_the_fixed_two():
    figures = {}
    for name, rule in RULES.items():
        chosen = [(task, rule(task, EXPERTS, 0)) for task in TASKS]
        right = sum(is_right(expert, task, 0) for task, expert in chosen) / len(TASKS)
        figures[name] = right, sum(answer_of(expert, task, 0).cost_nano for task, expert in chosen)
    assert max(right for right, _ in figures.values()) == figures["oracle"][0]
    assert figures["always cheapest"][1] < figures["random"][1] < figures["always strongest"][1]
    assert figures["always cheapest"][0] < figures["random"][0] < figures["always strongest"][0]
    assert figures["oracle"][1] < 0.4 * figures["always strongest"][1]


def test_a_grade_reads_the_last_number_of_an_answer():
    grader, task = SimulatedGrader(), TASKS[0]
    said = [f"FINAL: {task.gold_answer}", f"{task.gold_answer} or 12", "none", f"12, no: {task.gold_answer}"]
    assert [asyncio.run(grader.grade(task, text)).correct for text in said] == [True, False, False, True]
