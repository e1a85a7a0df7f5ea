from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from tests.rewards.conftest import sample, says, text_of

from firstchair.core.config import validate
from firstchair.core.errors import ConfigError
from firstchair.engines.base import ErrorKind, Generation, Stop
from firstchair.engines.scripted import ScriptedEngine
from firstchair.rewards.composition import Composition
from firstchair.rewards.grading import Grader
from firstchair.rewards.judge_client import JudgeClient
from firstchair.rewards.judge_server import open_judge
from firstchair.rewards.samples import GATED, NOT_ASKED, GradedSample, NoValue, count_reasons, sample_of_episode
from firstchair.rollout.episodes import run_episodes
from firstchair.rollout.teacher_policy import TeacherPolicy
from firstchair.testing.environment import WordEnvironment, WordExpert, WordTask
from firstchair.testing.fault_server import Answer, FaultServer

FORMAT = {
    "name": "form",
    "kind": "verifier",
    "check": "structured",
    "output_schema": {"type": "object"},
    "output_format": "json",
}
TASTE = {
    "name": "taste",
    "kind": "judge",
    "mode": "rubric",
    "weight": 0.5,
    "dimensions": [
        {"name": "tone", "question": "Polite?", "scores": [0, 1, 2]},
        {"name": "depth", "question": "Deep?", "scores": [1, 5]},
    ],
}
BETTER = {"name": "better", "kind": "judge", "mode": "pairwise", "criterion": "longer"}
TIME = {"name": "time", "kind": "latency", "weight": -1.0, "bounds": [0, 1]}
SIZE = {"name": "size", "kind": "length", "weight": -0.01, "bounds": [0, 50]}


def made(*components: dict[str, Any], **judge: Any) -> Composition:
    server = {"base_url": "http://127.0.0.1:1/v1", "model": "m", **judge}
    return validate(Composition, {"components": list(components), "judge": server}, source="test")


def grade(composition: Composition, engine: Any, *samples: Any) -> list[GradedSample]:
    return asyncio.run(Grader(composition, JudgeClient(engine)).grade(samples))


def test_every_raw_value_is_kept_beside_the_reward():
    engine = ScriptedEngine(lambda request: says({"reason": "r", "tone": 1, "depth": 5}))
    (found,) = grade(made(FORMAT, TASTE, SIZE), engine, sample("{}", reply_tokens=80))
    # 1 + 0.5·(½ + 1)/2 − 0.01·min(80, 50)
    assert found.reward == pytest.approx(1 + 0.375 - 0.5)
    assert found.components == {"form": 1.0, "taste": 0.75, "size": 80.0}
    assert found.details == {"taste": {"tone": 1, "depth": 5}}
    assert found.reasons == {}


def test_a_sample_that_code_has_failed_is_never_sent_to_a_judge():
    engine = ScriptedEngine(lambda request: says({"reason": "r", "tone": 2, "depth": 5}))
    gate = {**FORMAT, "gate": True}
    good, bad = grade(
        made(gate, TASTE, SIZE), engine, sample("{}", 0, reply_tokens=10), sample("no", 1, reply_tokens=0)
    )
    assert len(engine.seen) == 1
    assert good.reward == pytest.approx(1 + 0.5 - 0.1)
    # Failing in no tokens at all earns what failing in the most does.
    assert bad.reward == pytest.approx(-0.5)
    assert bad.components == {"form": 0.0, "taste": None, "size": None}
    assert bad.reasons == {"taste": NoValue(GATED), "size": NoValue(GATED)}
    assert count_reasons([good, bad]) == {}


def test_a_sample_that_code_could_not_grade_is_not_sent_either():
    engine = ScriptedEngine(lambda request: says({"reason": "r", "tone": 2, "depth": 5}))
    (found,) = grade(made(TASTE, SIZE), engine, sample("{}"))
    assert found.reward is None
    assert found.reasons["taste"] == NoValue(NOT_ASKED)
    assert found.reasons["reward"] == NoValue("not_measured", "size: the sample has no length")
    assert engine.seen == []
    assert count_reasons([found]) == {"size: not_measured": 1, "reward: not_measured": 1}


@pytest.mark.parametrize("fault", ["reset", "verify"])
@pytest.mark.parametrize("component", [FORMAT, TASTE, BETTER, TIME], ids=lambda component: component["name"])
def test_an_episode_that_broke_has_no_reward_whatever_would_have_graded_it(component, fault):
    """Before the first action, and after all of them: neither a blank answer nor half an episode is the model's."""

    async def broken() -> Any:
        tasks = [WordTask(task_id="a", words=("fox",), fault=fault)]
        return [one async for one in run_episodes(WordEnvironment, tasks, TeacherPolicy(WordExpert()))]

    (episode,) = asyncio.run(broken())
    engine = ScriptedEngine(lambda request: says({"reason": "r", "tone": 2, "depth": 5}))
    (found,) = grade(made(component), engine, sample_of_episode(episode))
    assert found.reward is None
    assert engine.seen == []
    assert count_reasons([found]) == {f"{component['name']}: episode_failed": 1, "reward: episode_failed": 1}
    assert f"{fault} is broken" in found.reasons["reward"].detail


def test_a_judge_that_fails_on_one_sample_leaves_the_others():
    def reply(request: Any) -> Any:
        if "bad" in text_of(request)["answer"]:
            return Generation("", Stop.ERROR, error="rate_limited: slow", error_kind=ErrorKind.RATE_LIMITED)
        return says({"reason": "r", "tone": 2, "depth": 5})

    good, bad = grade(made(TASTE), ScriptedEngine(reply), sample("good", 0), sample("bad", 1))
    assert good.reward == pytest.approx(0.5)
    assert bad.reward is None
    assert bad.components == {"taste": None}
    assert bad.reasons["taste"] == NoValue("rate_limited", "transport: slow")
    assert count_reasons([good, bad]) == {"taste: rate_limited": 1, "reward: rate_limited": 1}


def test_a_blank_answer_is_worth_nothing_and_no_judge_is_asked():
    engine = ScriptedEngine([])
    (found,) = grade(made(TASTE), engine, sample(" "))
    assert found.reward == 0.0
    assert engine.seen == []


def test_groups_are_compared_within_themselves(longer):
    found = grade(
        made(BETTER),
        longer,
        sample("aaa", 0, group="g"),
        sample("bbbbbb", 1, group="h"),
        sample("a", 2, group="g"),
        sample("bbb", 3, group="h"),
    )
    assert [one.reward for one in found] == [1.0, 1.0, 0.0, 0.0]
    assert found[0].details == {"better": {"comparisons": 1, "flips": 0}}


def test_an_answer_that_cannot_be_compared_is_ungraded_and_the_others_of_its_group_are_not():
    def reply(request: Any) -> Any:
        shown = text_of(request)
        if "broken" in shown.values():
            return says({"winner": "A"})
        return says({"reason": "r", "winner": "A" if len(shown["answer A"]) > len(shown["answer B"]) else "B"})

    found = grade(
        made(BETTER),
        ScriptedEngine(reply),
        sample("aaa", 0, group="g"),
        sample("broken", 1, group="g"),
        sample("a", 2, group="g"),
        sample("bb", 3, group="h"),
        sample("b", 4, group="h"),
    )
    assert [one.reward for one in found] == [1.0, None, 0.0, 1.0, 0.0]
    assert count_reasons(found)["better: bad_schema"] == 1


def test_components_are_routed_per_sample(longer):
    routed = {**BETTER, "when": {"row": "chat"}}
    first, second, third = grade(
        made({**FORMAT, "when": {"row": ["file", "chat"]}}, routed),
        longer,
        sample("{}", 0, labels={"row": "file"}),
        sample("[]", 1, labels={"row": "chat"}),
        sample("{}", 2, labels={"row": "mail"}),
    )
    assert first.components == {"form": 1.0}
    assert second.components == {"form": 0.0, "better": 0.5}
    assert third.reward is None
    assert third.reasons["reward"].why == "no_component"


def test_a_judge_component_without_a_judge_is_refused():
    with pytest.raises(ConfigError, match="component taste asks a judge"):
        Grader(made(TASTE))


def test_a_judge_that_hangs_holds_a_batch_no_longer_than_its_deadline():
    async def reply(request: Any) -> Any:
        if "slow" in text_of(request)["answer"]:
            await asyncio.Event().wait()
        return says({"reason": "r", "tone": 2, "depth": 5})

    async def run() -> list[GradedSample]:
        grader = Grader(made(TASTE, batch_s=0.5), JudgeClient(ScriptedEngine(reply)))
        found = await grader.grade([sample("quick", 0), sample("slow", 1)])
        assert len(asyncio.all_tasks()) == 1
        return found

    quick, slow = asyncio.run(run())
    assert quick.reward == 0.5
    assert slow.reward is None
    assert slow.reasons["taste"].why == "deadline"


def test_a_cancelled_batch_leaves_nothing_running():
    async def reply(request: Any) -> Any:
        await asyncio.Event().wait()

    async def run() -> None:
        grader = Grader(made(TASTE, BETTER), JudgeClient(ScriptedEngine(reply)))
        task = asyncio.ensure_future(grader.grade([sample("a", 0), sample("bb", 1), sample("ccc", 2)]))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer({}, status=429, headers={"retry-after": "0"}), "rate_limited"),
        (Answer({}, status=500, headers={"retry-after": "0"}), "server"),
        (Answer(b"garbage"), "bad_response"),
        (
            Answer({"choices": [{"message": {"role": "assistant", "content": "10/10"}, "finish_reason": "stop"}]}),
            "bad_json",
        ),
        (Answer(stall=True), "deadline"),
    ],
    ids=["429", "500", "garbage", "prose", "hang"],
)
def test_a_run_goes_on_without_the_judge_and_says_why(answer, why):
    async def run(base_url: str) -> list[GradedSample]:
        composition = made(FORMAT, TASTE, base_url=f"{base_url}/v1", tries=2, question_s=0.7)
        assert composition.judge is not None
        judge = open_judge(composition.judge)
        try:
            return await Grader(composition, judge).grade(
                [sample(orjson.dumps({"n": n}).decode(), n) for n in range(3)]
            )
        finally:
            await judge.close()

    with FaultServer(lambda _seen, _number: answer) as server:
        found = asyncio.run(run(server.base_url))
    assert [one.reward for one in found] == [None] * 3
    assert [one.components for one in found] == [{"form": 1.0, "taste": None}] * 3
    assert count_reasons(found) == {f"taste: {why}": 3, f"reward: {why}": 3}


def test_the_order_of_samples_does_not_change_their_rewards(longer):
    samples = [sample("a" * (n + 1), n, group=f"g{n % 2}") for n in range(6)]
    forth = {one.sample_id: one.reward for one in grade(made(BETTER), longer, *samples)}
    back = {one.sample_id: one.reward for one in grade(made(BETTER), longer, *reversed(samples))}
    assert forth == back
