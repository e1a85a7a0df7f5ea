from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from firstchair.chat.actions import Action, Problem
from firstchair.chat.messages import Message, Tool, ToolCall, assistant_message, text_message
from firstchair.engines.base import ErrorKind, Stop
from firstchair.rollout.environment import Observation
from firstchair.rollout.episodes import Episode, EpisodeEnd, Limits, Policy, PolicyReply, PolicyRequest, run_episodes
from firstchair.rollout.teacher_policy import TeacherPolicy
from firstchair.testing.environment import WordEnvironment, WordExpert, WordTask
from firstchair.traces.decisions import decision_points

EXPERT = WordExpert()


def run(tasks: Iterable[WordTask], policy: Policy, **options: Any) -> list[Episode]:
    async def collect() -> list[Episode]:
        return [episode async for episode in run_episodes(WordEnvironment, tasks, policy, **options)]

    return sorted(asyncio.run(collect()), key=lambda episode: episode.number)


def word_task(name: str, *words: str, fault: str = "") -> WordTask:
    return WordTask(task_id=name, words=words or ("fox",), fault=fault)


class FunctionPolicy:
    """One reply per request, from a function; ``batches`` keeps how many came at once."""

    name = "function"

    def __init__(self, reply: Any):
        self._reply = reply

    async def act(self, requests: Sequence[PolicyRequest]) -> list[PolicyReply]:
        return [self._reply(request) for request in requests]


def by_expert(request: PolicyRequest) -> PolicyReply:
    return PolicyReply(action=EXPERT.act(request.messages, request.tools))


def test_an_expert_completes_every_task_and_each_episode_is_a_session() -> None:
    tasks = [word_task("a", "fox"), word_task("b", "fox", "owl"), word_task("c", "eel")]
    episodes = run(tasks, FunctionPolicy(by_expert), concurrency=2, source="scripted")
    assert [(e.task_id, e.completed, e.end, e.steps) for e in episodes] == [
        ("a", True, EpisodeEnd.DONE, 2),
        ("b", True, EpisodeEnd.DONE, 4),
        ("c", True, EpisodeEnd.DONE, 2),
    ]
    session = episodes[1].session
    assert session.source == "scripted"
    assert session.labels == {"task_id": "b", "trial": 0, "end": "done", "completed": True}
    assert [message.role for message in session.messages] == [
        *("system", "user", "assistant", "tool", "assistant"),
        *("user", "assistant", "tool", "assistant"),
    ]
    assert [(turn.start, turn.end) for turn in session.turns] == [(1, 5), (5, 9)]
    assert [point.kind for point in decision_points(session)] == ["tool_call", "final_reply"] * 2


def test_at_most_so_many_environments_live_at_once_and_finished_ones_make_room() -> None:
    live, most = 0, 0

    class Counted(WordEnvironment):
        async def reset(self, task: WordTask, seed: int) -> Observation:
            nonlocal live, most
            live += 1
            most = max(most, live)
            return await super().reset(task, seed)

        async def close(self) -> None:
            nonlocal live
            live -= 1

    async def collect() -> list[Episode]:
        tasks = [word_task(str(number), *["fox"] * (1 + number % 2)) for number in range(9)]
        return [e async for e in run_episodes(Counted, tasks, FunctionPolicy(by_expert), concurrency=3)]

    assert len(asyncio.run(collect())) == 9
    assert (live, most) == (0, 3)


def test_trials_of_a_task_start_equal_and_are_numbered() -> None:
    seeds: list[int] = []

    class Spy(WordEnvironment):
        async def reset(self, task: WordTask, seed: int) -> Any:
            seeds.append(seed)
            return await super().reset(task, seed)

    async def collect(seed: int) -> list[Episode]:
        tasks = [word_task("a"), word_task("b"), word_task("a")]
        return [e async for e in run_episodes(Spy, tasks, FunctionPolicy(by_expert), seed=seed)]

    episodes = asyncio.run(collect(1))
    assert [(e.task_id, e.trial) for e in sorted(episodes, key=lambda e: e.number)] == [("a", 0), ("b", 0), ("a", 1)]
    assert seeds[0] == seeds[2] != seeds[1]
    assert len({e.session.session_id for e in episodes}) == 3
    first = list(seeds)
    asyncio.run(collect(2))
    assert seeds[3:] != first


@pytest.mark.parametrize("fault", ["reset", "step", "verify"])
def test_an_environment_that_fails_ends_its_own_episode_without_an_outcome(fault: str) -> None:
    tasks = [word_task("good"), word_task("bad", fault=fault), word_task("fine")]
    good, bad, fine = run(tasks, FunctionPolicy(by_expert), concurrency=2)
    assert good.completed
    assert fine.completed
    assert bad.end is EpisodeEnd.ERROR
    assert bad.outcome is None
    assert bad.completed is None
    assert "completed" not in bad.session.labels
    assert bad.error == f"environment.{fault}: RuntimeError: {fault} is broken"


def test_an_error_of_the_policy_is_not_a_failure_of_the_model() -> None:
    def reply(request: PolicyRequest) -> PolicyReply:
        if request.episode_id.startswith("bad"):
            return PolicyReply(error="rate_limited: HTTP 429", error_kind=ErrorKind.RATE_LIMITED)
        return by_expert(request)

    bad, good = run([word_task("bad"), word_task("good")], FunctionPolicy(reply))
    assert good.completed
    assert bad.outcome is None
    assert bad.error == "rate_limited: HTTP 429"
    assert bad.steps == 0


def raising(request: PolicyRequest) -> PolicyReply:
    raise KeyError("engine")


def test_a_policy_that_raises_or_miscounts_ends_episodes_with_an_error_and_not_the_run() -> None:
    class Miscounting(FunctionPolicy):
        async def act(self, requests: Sequence[PolicyRequest]) -> list[PolicyReply]:
            return []

    for policy, found in ((FunctionPolicy(raising), "KeyError"), (Miscounting(by_expert), "0 replies to 1 request")):
        episodes = run([word_task("a"), word_task("b")], policy)
        assert [found in (e.error or "") for e in episodes] == [True, True]


def test_a_policy_that_hangs_is_given_up_as_a_typed_error() -> None:
    class Hanging(FunctionPolicy):
        async def act(self, requests: Sequence[PolicyRequest]) -> list[PolicyReply]:
            await asyncio.Event().wait()
            return []

    (episode,) = run([word_task("a")], Hanging(by_expert), limits=Limits(stall_s=0.01))
    assert episode.error == "policy: no reply within 0.01 s"


def test_the_number_of_steps_is_bounded_and_the_state_then_judged() -> None:
    again = Action(kind="tool_call", calls=(ToolCall.of("", "store", {"word": "fox"}),))
    (episode,) = run([word_task("a")], FunctionPolicy(lambda _: PolicyReply(action=again)), max_steps=3)
    assert episode.end is EpisodeEnd.MAX_STEPS
    assert episode.steps == 3
    assert episode.completed is False
    ids = [call.id for message in episode.session.messages for call in message.tool_calls]
    assert len(set(ids)) == 3
    assert all(ids)


def test_a_malformed_call_is_answered_as_its_result_and_recorded() -> None:
    bad = Action(
        kind="tool_call",
        calls=(ToolCall(id="x", name="store", arguments='{"word": '), ToolCall.of("y", "store", {"word": "fox"})),
    )
    problem = Problem(kind="malformed_json", message="expected a value at character 9", call=0)

    def reply(request: PolicyRequest) -> PolicyReply:
        if len(request.messages) == 2:
            return PolicyReply(action=bad, malformed=True, problems=(problem,), raw_text="<raw>")
        if request.messages[-1].is_error:
            return PolicyReply(action=EXPERT.act(request.messages[:2], ()))
        return by_expert(request)

    (episode,) = run([word_task("a")], FunctionPolicy(reply))
    assert episode.completed
    assert (episode.steps, episode.malformed) == (3, 1)
    first, second = episode.session.messages[3:5]
    assert first.is_error
    assert first.tool_call_id == "x"
    assert "expected a value" in first.text
    assert "another call" in second.text
    (kept,) = episode.session.meta["malformed"]
    assert kept == {
        "message_index": 2,
        "raw_text": "<raw>",
        "problems": [{"kind": "malformed_json", "message": problem.message, "call": 0}],
    }


def test_what_is_wrong_with_an_action_that_can_be_read_is_noted_and_the_action_is_carried_out() -> None:
    problem = Problem(kind="text_after_call", message="text after a call: 'And now?'")

    def reply(request: PolicyRequest) -> PolicyReply:
        made = by_expert(request)
        return replace(made, problems=(problem,)) if len(request.messages) == 2 else made

    (episode,) = run([word_task("a")], FunctionPolicy(reply))
    assert episode.session.meta["untidy"] == [
        {"message_index": 2, "problems": [{"kind": "text_after_call", "message": problem.message}]}
    ]
    assert (episode.completed, episode.malformed) == (True, 0)


def test_unreadable_text_is_answered_in_words_that_open_no_turn_and_a_limit_ends_it() -> None:
    def reply(request: PolicyRequest) -> PolicyReply:
        return PolicyReply(malformed=True, raw_text="<tool_call>{", problems=())

    (episode,) = run([word_task("a")], FunctionPolicy(reply), limits=Limits(max_malformed=2))
    assert episode.end is EpisodeEnd.MALFORMED
    assert episode.completed is False
    assert episode.malformed == 3
    roles = [message.role for message in episode.session.messages]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user", "assistant"]
    assert episode.session.messages[2].text == "<tool_call>{"
    assert len(episode.session.turns) == 1


def test_a_refusal_ends_the_episode_as_itself() -> None:
    reply = PolicyReply(action=Action(kind="final_reply", text="I cannot."), stop=Stop.REFUSAL)
    (episode,) = run([word_task("a")], FunctionPolicy(lambda _: reply))
    assert episode.end is EpisodeEnd.REFUSED
    assert decision_points(episode.session)[0].tags == ("refused",)
    assert episode.completed is False


def test_a_cut_reply_is_answered_as_malformed_and_marked_as_cut() -> None:
    def reply(request: PolicyRequest) -> PolicyReply:
        if len(request.messages) == 2:
            action = Action(kind="final_reply", text="I will")
            return PolicyReply(action=action, malformed=True, raw_text="I will", stop=Stop.LENGTH)
        return by_expert(request)

    (episode,) = run([word_task("a")], FunctionPolicy(reply), max_steps=1)
    assert episode.malformed == 1
    assert episode.session.messages[2].extra == {"truncated": True}
    assert not episode.session.messages[1].extra


def test_assistant_messages_of_the_start_are_context_and_not_decisions() -> None:
    class Resumed(WordEnvironment):
        async def reset(self, task: WordTask, seed: int) -> Observation:
            first = await super().reset(task, seed)
            said = (text_message("user", "hi"), assistant_message("hello"))
            return Observation(messages=(first.messages[0], *said, first.messages[1]), tools=first.tools)

    async def collect() -> Episode:
        async for episode in run_episodes(Resumed, [word_task("a")], FunctionPolicy(by_expert)):
            return episode
        raise AssertionError

    episode = asyncio.run(collect())
    assert episode.completed
    assert episode.session.context_end == 4
    assert [(turn.start, turn.end) for turn in episode.session.turns] == [(1, 3), (3, 7)]


def test_leaving_early_stops_everything() -> None:
    async def first() -> str:
        policy = FunctionPolicy(by_expert)
        stream = run_episodes(WordEnvironment, [word_task(str(n)) for n in range(50)], policy, concurrency=2)
        async for episode in stream:
            await stream.aclose()
            return episode.task_id
        return ""

    assert asyncio.run(first()) in {"0", "1"}


def test_a_run_that_never_waits_can_still_be_cancelled() -> None:
    done: list[Episode] = []

    async def play() -> None:
        policy = FunctionPolicy(by_expert)
        async for episode in run_episodes(WordEnvironment, [word_task(str(n)) for n in range(5000)], policy):
            done.append(episode)

    async def cancelled() -> None:
        task = asyncio.ensure_future(play())
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert len(done) < 1000


def test_a_broken_list_of_tasks_is_raised_and_not_swallowed() -> None:
    def tasks() -> Iterable[WordTask]:
        yield word_task("a")
        raise ValueError("line 2 is broken")

    with pytest.raises(ExceptionGroup) as raised:
        run(tasks(), FunctionPolicy(by_expert))
    assert raised.group_contains(ValueError, match="line 2 is broken")


def test_the_teacher_policy_records_a_call_per_message_and_contains_its_own_errors() -> None:
    class Broken(WordExpert):
        def act(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Action:
            if "owl" in messages[1].text:
                raise ValueError("no owls")
            return super().act(messages, tools)

    good, bad = run([word_task("a"), word_task("b", "owl")], TeacherPolicy(Broken(), name="expert"))
    assert good.completed
    assert [call.message_index for call in good.session.calls] == [2, 4]
    assert {call.model for call in good.session.calls} == {"expert"}
    assert bad.error == "ValueError: no owls"
