from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from firstchair.catalog.call_rules import Matchers
from firstchair.catalog.verdict import Scorer
from firstchair.chat.actions import Action, Problem
from firstchair.chat.messages import Message, Tool, ToolCall
from firstchair.engines.base import ErrorKind, Stop
from firstchair.rewards.verdict_cache import VerdictCache
from firstchair.rollout.dagger import (
    Caps,
    DaggerPlan,
    Lesson,
    MixedEpisode,
    Why,
    agrees,
    run_dagger,
    who_acts,
    with_own_ids,
)
from firstchair.rollout.dagger_teacher import GIVE_UP, Budget, DaggerTeacher, Spent
from firstchair.rollout.desk.definitions import desk_catalog, desk_tools
from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.review import review
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.rollout.desk.teacher import Teacher
from firstchair.rollout.environment import Outcome, Step
from firstchair.rollout.episodes import Limits
from firstchair.rollout.policy import Actor, PolicyReply, PolicyRequest
from firstchair.rollout.teacher_policy import TeacherPolicy
from firstchair.testing.environment import WordEnvironment, WordExpert, WordTask
from firstchair.traces.session import ModelCall, Usage

DESK_MATCHERS = Matchers.of(desk_catalog().matchers())


class ByFunction:
    """A policy that replies by a function of the request."""

    name = "function"

    def __init__(self, reply: Any):
        self._reply = reply
        self.asked = 0

    async def act(self, requests: Sequence[PolicyRequest]) -> list[PolicyReply]:
        self.asked += len(requests)
        return [self._reply(request) for request in requests]


def expert_of(actor: Actor, **fields: Any) -> DaggerTeacher:
    return DaggerTeacher(TeacherPolicy(actor, name="expert"), **fields)


def play(
    environment: Any, tasks: Iterable[Any], learner: Any, teacher: DaggerTeacher, **plan: Any
) -> list[MixedEpisode]:
    matchers = DESK_MATCHERS if environment is DeskEnvironment else None
    made = DaggerPlan(**{"beta": 0.0, "seed": 0, **plan})
    return asyncio.run(run_dagger(environment, tasks, learner, teacher, made, matchers=matchers))


def desk(learner: Actor, *, n: int = 6, teacher: DaggerTeacher | None = None, **plan: Any) -> list[MixedEpisode]:
    return play(DeskEnvironment, make_tasks(n, 31), TeacherPolicy(learner), teacher or expert_of(Teacher()), **plan)


def lessons_of(episodes: Iterable[MixedEpisode], why: Why) -> list[Lesson]:
    return [lesson for episode in episodes for lesson in episode.lessons if lesson.why is why]


def words(*names: str) -> WordTask:
    return WordTask(task_id="-".join(names), words=names)


def store(word: str) -> Action:
    return Action(kind="tool_call", calls=(ToolCall.of("", "store", {"word": word}),))


def test_a_learner_that_never_errs_is_agreed_with_and_teaches_nothing_else() -> None:
    episodes = desk(Teacher())
    assert all(episode.outcome is not None and episode.outcome.completed for episode in episodes)
    assert [episode.derailments for episode in episodes] == [0] * 6
    assert {lesson.why for episode in episodes for lesson in episode.lessons} == {Why.AGREED}
    for episode in episodes:
        (lesson,) = episode.lessons
        assert lesson.messages == episode.session.messages
        assert lesson.taught == tuple(step.message_index for step in episode.steps)


def test_every_error_of_a_learner_is_found_and_relabelled_with_what_was_right() -> None:
    episodes = desk(Teacher(mistake_rate=0.4, seed=5), n=12, caps=Caps(derailed=99, recovery=99))
    wrong = 0
    for episode in episodes:
        # The review of the whole session by the desk's policy says the same as the steps did on the way.
        faults = {found.message_index for found in review(episode.session.messages) if found.dimension}
        assert {step.message_index for step in episode.steps if step.derailed} == faults
        wrong += len(faults)
        for lesson in episode.lessons:
            for place in lesson.taught:
                (found,) = [f for f in review(lesson.messages) if f.message_index == place]
                assert not found.dimension
    assert wrong > 20
    derailed, recovered = lessons_of(episodes, Why.DERAILED), lessons_of(episodes, Why.RECOVERY)
    assert derailed
    assert recovered
    for lesson in derailed:
        assert lesson.taught == (len(lesson.messages) - 1,)


def test_lessons_stand_in_the_conversation_that_was_really_reached() -> None:
    episodes = desk(Teacher(mistake_rate=0.4, seed=5), n=12)
    for episode in episodes:
        for lesson in episode.lessons:
            first = lesson.taught[0]
            assert lesson.messages[:first] == episode.session.messages[:first]


def test_the_way_out_begins_behind_the_mistake_and_ends_with_the_turn() -> None:
    episodes = desk(Teacher(mistake_rate=0.4, seed=5), n=12)
    shown = [lesson for lesson in lessons_of(episodes, Why.RECOVERY) if len(lesson.taught) > 1]
    assert shown
    for lesson in shown:
        assert lesson.derailed_at is not None
        assert lesson.step > lesson.derailed_at
        assert lesson.messages[-1].role == "assistant"
        assert not lesson.messages[-1].tool_calls
        assert "user" not in [message.role for message in lesson.messages[lesson.taught[0] :]]


def test_what_the_teacher_shows_changes_nothing_in_the_episode() -> None:
    """The learner's session is the one it has without any teaching."""
    learner = Teacher(mistake_rate=0.4, seed=5)
    taught = desk(learner, n=8)
    untaught = desk(learner, n=8, caps=Caps(derailed=0, recovery=0, agreed=0))
    assert not any(episode.lessons for episode in untaught)
    assert sum(episode.derailments for episode in taught) > 5
    for left, right in zip(taught, untaught, strict=True):
        assert left.session.messages == right.session.messages
        assert left.outcome == right.outcome


def test_a_state_behind_two_mistakes_is_taught_once() -> None:
    def learner(request: PolicyRequest) -> PolicyReply:
        said = [message.text for message in request.messages if message.role == "tool"]
        return PolicyReply(action=store("wrong") if len(said) < 2 else WordExpert().act(request.messages, ()))

    (episode,) = play(WordEnvironment, [words("fox")], ByFunction(learner), expert_of(WordExpert()))
    assert [step.derailed for step in episode.steps] == [True, True, False]
    # The expert says after any result that it is done, so the second mistake's own label is the first's way out.
    assert [(lesson.why, lesson.step, lesson.derailed_at) for lesson in episode.lessons] == [
        (Why.DERAILED, 0, 0),
        (Why.RECOVERY, 1, 0),
        (Why.RECOVERY, 2, 0),
        (Why.AGREED, 2, None),
    ]


def test_the_coin_depends_on_seed_round_task_and_step_alone() -> None:
    plan = DaggerPlan(beta=0.3, noise=0.2, seed=4)
    flips = [who_acts(plan, f"task-{task}", step) for task in range(50) for step in range(40)]
    assert 0.27 < flips.count("teacher") / len(flips) < 0.33
    assert 0.17 < flips.count("noise") / len(flips) < 0.23
    assert flips == [who_acts(plan, f"task-{task}", step) for task in range(50) for step in range(40)]
    other = replace(plan, round=2)
    assert flips != [who_acts(other, f"task-{task}", step) for task in range(50) for step in range(40)]
    assert who_acts(DaggerPlan(beta=0.0, seed=4), "task", 0) == "learner"
    assert who_acts(DaggerPlan(beta=1.0, seed=4), "task", 0) == "teacher"


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_beta_says_how_many_steps_are_the_teachers(beta: float) -> None:
    episodes = desk(Teacher(mistake_rate=1.0, seed=5), n=10, beta=beta)
    steps = [step for episode in episodes for step in episode.steps]
    assert sum(step.by == "teacher" for step in steps) / len(steps) == pytest.approx(beta, abs=0.15)
    if beta == 1.0:
        assert all(episode.outcome is not None and episode.outcome.completed for episode in episodes)
    assert not any(step.derailed for step in steps if step.by == "teacher")


def test_mistakes_made_on_purpose_are_recovered_from_and_not_held_against_the_learner() -> None:
    teacher, astray = expert_of(Teacher()), TeacherPolicy(Teacher(mistake_rate=1.0, seed=6))
    plan = DaggerPlan(beta=0.0, noise=0.3, seed=0)
    episodes = asyncio.run(
        run_dagger(DeskEnvironment, make_tasks(8, 31), TeacherPolicy(Teacher()), teacher, plan, astray=astray)
    )
    steps = [step for episode in episodes for step in episode.steps]
    assert sum(step.by == "noise" for step in steps) / len(steps) == pytest.approx(0.3, abs=0.12)
    assert [step.derailed for step in steps] == [step.by == "noise" for step in steps]
    assert sum(episode.derailments for episode in episodes) == 0
    assert not lessons_of(episodes, Why.DERAILED)
    recoveries = lessons_of(episodes, Why.RECOVERY)
    assert recoveries
    for lesson in recoveries:
        assert lesson.derailed_at is not None
        assert lesson.step > lesson.derailed_at


def test_nobody_who_errs_leaves_the_steps_to_the_learner() -> None:
    (episode,) = play(
        WordEnvironment, [words("fox")], TeacherPolicy(WordExpert()), expert_of(WordExpert()), noise=1.0
    )
    assert {step.by for step in episode.steps} == {"learner"}


def test_what_cannot_be_read_is_a_derailment_and_the_teacher_never_hears_the_complaint() -> None:
    def learner(request: PolicyRequest) -> PolicyReply:
        if len(request.messages) == 2:
            return PolicyReply(
                malformed=True, raw_text="<tool_call>{", problems=(Problem(kind="unclosed_call", message="open"),)
            )
        return PolicyReply(action=Teacher().act(request.messages[:2] + request.messages[4:], request.tools))

    heard: list[Sequence[Message]] = []

    class Listening(Teacher):
        def act(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Action:
            heard.append(messages)
            return super().act(messages, tools)

    (episode,) = play(DeskEnvironment, make_tasks(1, 31), ByFunction(learner), expert_of(Listening()))
    assert [step.derailed for step in episode.steps][:2] == [True, False]
    assert not any("could not be read" in message.text for messages in heard for message in messages)
    relabelled, recovery = episode.lessons[:2]
    assert (relabelled.why, len(relabelled.messages)) == (Why.DERAILED, 3)
    assert recovery.why is Why.RECOVERY
    assert "could not be read" in recovery.messages[3].text
    assert recovery.messages[4].tool_calls[0].name == relabelled.messages[2].tool_calls[0].name


class Watched(WordEnvironment):
    """Reports a word twice stored, which comparing actions does not show."""

    async def verify(self) -> Outcome:
        twice = {word for word in self._stored if self._stored.count(word) > 1}
        return replace(await super().verify(), violations=tuple(sorted(twice)))


def test_a_violation_that_the_environment_reports_is_a_derailment_too() -> None:
    """Teacher and learner do the same there, so only the environment can tell; the teacher is then not believed."""
    (episode,) = play(Watched, [words("fox", "fox")], TeacherPolicy(WordExpert()), expert_of(WordExpert()))
    assert [step.violations for step in episode.steps] == [(), (), ("fox",), ()]
    assert [step.derailed for step in episode.steps] == [False, False, True, False]
    assert [lesson.why for lesson in episode.lessons] == [Why.RECOVERY, Why.AGREED]


def test_a_teacher_that_breaks_the_rules_is_not_learnt_from() -> None:
    teacher = expert_of(WordExpert())
    (episode,) = play(Watched, [words("fox", "fox")], TeacherPolicy(WordExpert()), teacher, beta=1.0)
    assert [step.taught is None for step in episode.steps] == [False, False, True, False]
    assert teacher.failures == {"violation": 1}
    (lesson,) = episode.lessons
    assert episode.steps[2].message_index not in lesson.taught


def test_caps_hold_for_each_kind_and_episode() -> None:
    learner = Teacher(mistake_rate=0.6, seed=5)
    free = desk(learner, n=5, caps=Caps(derailed=99, recovery=99))
    capped = desk(learner, n=5, caps=Caps(derailed=1, recovery=2, agreed=0))
    for why, cap in ((Why.DERAILED, 1), (Why.RECOVERY, 2), (Why.AGREED, 0)):
        for many, few in zip(free, capped, strict=True):
            there = len(lessons_of([many], why))
            assert len(lessons_of([few], why)) == min(cap, there)


def test_free_text_that_differs_is_no_derailment_where_matchers_allow_it() -> None:
    scorer = Scorer(desk_tools(), Matchers.of({"AskUser": {"question": "ignore"}}))

    def call(tool: str, **arguments: str) -> Action:
        return Action(kind="tool_call", calls=(ToolCall.of("c", tool, arguments),))

    assert agrees(scorer, call("AskUser", question="Which one?"), call("AskUser", question="Which of them?"))
    assert not agrees(scorer, call("Read", path="a.txt"), call("Read", path="b.txt"))
    assert not agrees(scorer, call("Read", path="a.txt"), Action(kind="final_reply", text="a.txt"))
    assert agrees(scorer, Action(kind="final_reply", text="Done."), Action(kind="final_reply", text="It is done."))


def test_a_teacher_that_is_down_leaves_steps_unlabelled_and_is_given_up() -> None:
    down = ByFunction(lambda request: PolicyReply(error="timeout: x", error_kind=ErrorKind.TIMEOUT))
    teacher = DaggerTeacher(down)
    episodes = play(DeskEnvironment, make_tasks(30, 31), TeacherPolicy(Teacher()), teacher, concurrency=1, beta=0.5)
    assert down.asked == GIVE_UP
    assert 0 < len(episodes) < 30
    steps = [step for episode in episodes for step in episode.steps]
    assert all(step.taught is None and step.by == "learner" and not step.derailed for step in steps)
    assert not any(episode.lessons for episode in episodes)
    assert teacher.failures["timeout"] == GIVE_UP
    assert teacher.failures["down"] == len(steps) - GIVE_UP


def test_one_failure_costs_one_label() -> None:
    calls = 0

    def flaky(request: PolicyRequest) -> PolicyReply:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError("gone")
        return PolicyReply(action=WordExpert().act(request.messages, request.tools))

    teacher = DaggerTeacher(ByFunction(flaky))
    (episode,) = play(WordEnvironment, [words("fox", "owl")], TeacherPolicy(WordExpert()), teacher)
    assert [step.taught is None for step in episode.steps] == [False, True, False, False]
    assert teacher.failures == {"error": 1}
    (lesson,) = episode.lessons
    assert lesson.taught == tuple(episode.steps[place].message_index for place in (0, 2, 3))


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (PolicyReply(action=store("x"), malformed=True), "malformed"),
        (PolicyReply(action=Action(kind="final_reply", text="No."), stop=Stop.REFUSAL), "refused"),
        (PolicyReply(error="rate_limited: 429", error_kind=ErrorKind.RATE_LIMITED), "rate_limited"),
    ],
)
def test_why_there_is_no_label_is_counted(reply: PolicyReply, why: str) -> None:
    teacher = DaggerTeacher(ByFunction(lambda request: reply))
    assert asyncio.run(teacher.ask("e", (), ())) is None
    assert teacher.failures == {why: 1}


def costly(request: PolicyRequest) -> PolicyReply:
    usage = Usage(input=60, output=30, cache_read=10)
    call = ModelCall(call_id="c", provider="p", model="m", started_at="2026-01-01T00:00:00Z", usage=usage)
    return PolicyReply(action=WordExpert().act(request.messages, request.tools), call=call)


@pytest.mark.parametrize(
    ("budget", "calls", "why"),
    [
        (Budget(calls=3), 3, "budget: calls"),
        (Budget(tokens=250), 3, "budget: tokens"),
        (Budget(usd=0.4), 4, "budget: usd"),
    ],
)
def test_a_budget_ends_the_asking_and_no_further_episode_begins(budget: Budget, calls: int, why: str) -> None:
    policy = ByFunction(costly)
    teacher = DaggerTeacher(policy, budget, usd=lambda usage: usage.output / 300)
    tasks = [words("fox", "owl"), words("eel", "cat"), words("dog", "ant")]
    episodes = play(WordEnvironment, tasks, TeacherPolicy(WordExpert()), teacher, concurrency=1)
    assert policy.asked == calls
    assert teacher.spent == Spent(calls=calls, tokens=100 * calls, usd=pytest.approx(calls / 10))
    assert [episode.task_id for episode in episodes] == ["fox-owl"]
    assert teacher.failures[why] == 4 - calls
    assert teacher.exhausted == why


def test_what_earlier_rounds_cost_counts() -> None:
    teacher = DaggerTeacher(ByFunction(costly), Budget(calls=3), spent=Spent(calls=3))
    assert play(WordEnvironment, [words("fox")], TeacherPolicy(WordExpert()), teacher) == []


def test_an_answer_is_kept_on_disk_under_its_question(tmp_path: Any) -> None:
    asked: list[int] = []
    for identity in ({"temperature": 0.0}, {"temperature": 0.0}, {"temperature": 1.0}):
        policy, cache = ByFunction(costly), VerdictCache(tmp_path / "answers.sqlite")
        teacher = DaggerTeacher(policy, cache=cache, identity=identity)
        (episode,) = play(WordEnvironment, [words("fox", "owl")], TeacherPolicy(WordExpert()), teacher)
        cache.close()
        asked.append(policy.asked)
        assert (teacher.spent.calls, teacher.spent.cached) == (policy.asked, 4 - policy.asked)
        assert len(episode.lessons[0].taught) == 4
    assert asked == [4, 0, 4]


def test_a_kept_answer_that_cannot_be_read_is_asked_for_again() -> None:
    policy, cache = ByFunction(costly), VerdictCache()
    teacher = DaggerTeacher(policy, cache=cache)
    messages = asyncio.run(WordEnvironment().reset(words("fox"), 0)).messages
    key = teacher._key(messages, ())
    cache.put(key, '{"nothing": 1}')
    assert asyncio.run(teacher.ask("e", messages, ())) is not None
    assert policy.asked == 1


@pytest.mark.parametrize("fault", ["reset", "step", "verify"])
def test_an_environment_that_fails_ends_its_own_episode_and_teaches_nothing(fault: str) -> None:
    bad = WordTask(task_id="bad", words=("fox",), fault=fault)
    first, second = play(WordEnvironment, [bad, words("owl")], TeacherPolicy(WordExpert()), expert_of(WordExpert()))
    assert first.outcome is None
    assert first.error == f"environment.{fault}: RuntimeError: {fault} is broken"
    assert first.lessons == ()
    assert second.outcome is not None
    assert second.lessons


class Troubled(WordEnvironment):
    """Fails as ``fault`` says, ``METHOD HOW``; its ``step`` only once something is stored."""

    async def _trouble(self, method: str) -> None:
        wanted, _, how = self._task.fault.partition(" ")
        if wanted != method:
            return
        if how == "hangs":
            await asyncio.Event().wait()
        if how == "exits":
            raise SystemExit(3)
        if how == "cancels":
            raise asyncio.CancelledError
        raise TimeoutError("its own clock")

    async def step(self, action: Action) -> Step:
        if self._stored:
            await self._trouble("step")
        return await super().step(action)

    async def verify(self) -> Outcome:
        if self._task.fault == "verify babbles":
            return "fine"  # type: ignore[return-value]
        await self._trouble("verify")
        return await super().verify()

    def snapshot(self) -> Any:
        if self._task.fault == "snapshot raises":
            raise OSError("raised before there was anything to await")
        return self._held()

    async def _held(self) -> Any:
        await self._trouble("snapshot")
        return await super().snapshot()

    async def restore(self, snapshot: Any) -> None:
        await self._trouble("restore")
        await super().restore(snapshot)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("step hangs", "environment.step: no answer within 0.05 s"),
        ("verify hangs", "environment.verify: no answer within 0.05 s"),
        ("snapshot hangs", "environment.snapshot: no answer within 0.05 s"),
        ("restore hangs", "environment.restore: no answer within 0.05 s"),
        ("restore is late", "environment.restore: TimeoutError: its own clock"),
        ("snapshot raises", "environment.snapshot: OSError: raised before there was anything to await"),
        ("verify exits", "environment.verify: SystemExit: 3"),
        ("step cancels", "environment.step: CancelledError: nobody had cancelled it"),
        ("restore cancels", "environment.restore: CancelledError: nobody had cancelled it"),
        ("verify babbles", "environment.verify: DataError: found 'fine'; expected Outcome"),
    ],
)
def test_an_environment_that_hangs_or_breaks_in_any_way_costs_its_own_episode_and_the_round_goes_on(
    fault: str, error: str
) -> None:
    def learner(request: PolicyRequest) -> PolicyReply:
        return PolicyReply(action=store("wrong") if len(request.messages) == 2 else store("again"))

    bad = WordTask(task_id="bad", words=("fox",), fault=fault)
    teacher = expert_of(WordExpert())
    first, second = play(
        Troubled, [bad, words("owl")], ByFunction(learner), teacher, limits=Limits(stall_s=0.05), max_steps=3
    )
    assert (first.error, first.outcome, first.lessons) == (error, None, ())
    assert second.outcome is not None
    assert second.lessons


def test_a_learner_that_fails_ends_its_own_episode() -> None:
    def learner(request: PolicyRequest) -> PolicyReply:
        raise OSError("engine gone")

    (episode,) = play(WordEnvironment, [words("fox")], ByFunction(learner), expert_of(WordExpert()))
    assert episode.error == "policy: OSError: engine gone"
    assert (episode.steps, episode.lessons) == ((), ())


def test_call_ids_of_a_taught_action_are_not_those_of_the_conversation() -> None:
    first = with_own_ids(store("a"), ())
    again = with_own_ids(first, [first.to_message()])
    assert first.calls[0].id == "call_0"
    assert again.calls[0].id == "call_1"
    kept = msgspec.structs.replace(store("b"), calls=(ToolCall.of("toolu_9", "store", {"word": "b"}),))
    assert with_own_ids(kept, [first.to_message()]).calls[0].id == "toolu_9"
