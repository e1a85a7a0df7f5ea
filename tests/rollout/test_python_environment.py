"""A plain class as an environment: what it may return, and what happens when it cannot be read, raises or hangs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from firstchair.chat.actions import Action
from firstchair.chat.messages import ToolCall, text_message
from firstchair.core.errors import ConfigError, DataError, RunFailed
from firstchair.rollout.environment import Outcome
from firstchair.rollout.episodes import Episode, run_episodes
from firstchair.rollout.policy import PolicyReply, PolicyRequest
from firstchair.rollout.python_environment import PythonEnvironment
from firstchair.testing.environment import WordTask

GUESS = {
    "type": "function",
    "function": {"name": "guess", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}},
}


class Game:
    """Blocking: guess the number, by tool call, then say that it is over."""

    tools = (GUESS,)

    def reset(self, task: Any, seed: int) -> str:
        self.secret, self.guessed, self.threads = seed % 3, False, {threading.get_ident()}
        return f"Guess a number, {task.task_id}."

    def step(self, message: dict[str, Any]) -> tuple[list[dict[str, Any]], bool]:
        self.threads.add(threading.get_ident())
        calls = message.get("tool_calls") or []
        if not calls:
            return [], True
        self.guessed |= calls[0]["function"]["arguments"] == f'{{"n": {self.secret}}}'
        return [
            {"role": "tool", "tool_call_id": calls[0]["id"], "content": "right" if self.guessed else "wrong"}
        ], False

    def verify(self) -> bool:
        return self.guessed


class AsyncGame(Game):
    async def reset(self, task: Any, seed: int) -> Any:
        return super().reset(task, seed), [GUESS]

    async def step(self, message: dict[str, Any]) -> Any:
        return super().step(message)

    async def verify(self) -> float:
        return 0.5


class Guesser:
    """Guesses 0, 1, 2 and stops at ``right``."""

    name, batched = "guesser", False

    async def act(self, requests: list[PolicyRequest]) -> list[PolicyReply]:
        out = []
        for request in requests:
            last, tried = request.messages[-1], sum(len(message.tool_calls) for message in request.messages)
            call = ToolCall.of(f"c{tried}", "guess", {"n": tried})
            done = last.role == "tool" and last.text == "right"
            action = Action(kind="final_reply", text="Got it.") if done else Action(kind="tool_call", calls=(call,))
            out.append(PolicyReply(action=action))
        return out


def play(make: Any, count: int = 6, **options: Any) -> list[Episode]:
    tasks = [WordTask(task_id=f"t{number}", words=()) for number in range(count)]

    async def run() -> list[Episode]:
        return [episode async for episode in run_episodes(make, tasks, Guesser(), **options)]

    return asyncio.run(run())


def test_a_blocking_class_is_played_in_threads():
    made: list[Game] = []

    def make() -> PythonEnvironment:
        made.append(Game())
        return PythonEnvironment(made[-1])

    episodes = play(make)
    assert [episode.completed for episode in episodes] == [True] * 6
    assert {tool.name for tool in episodes[0].tools} == {"guess"}
    assert [message.role for message in episodes[0].session.messages[:2]] == ["user", "assistant"]
    assert all(threading.get_ident() not in game.threads for game in made)


def test_coroutines_tools_from_reset_and_scores():
    for completed_at, completed in ((1.0, False), (0.5, True)):
        episodes = play(lambda at=completed_at: PythonEnvironment(AsyncGame(), completed_at=at))
        assert {episode.completed for episode in episodes} == {completed}
        assert {episode.outcome.score for episode in episodes if episode.outcome} == {0.5}
        assert {tool.name for tool in episodes[0].tools} == {"guess"}


def test_a_copy_goes_its_own_way():
    async def run() -> None:
        environment = PythonEnvironment(Game())
        await environment.reset(WordTask(task_id="t", words=()), seed=4)
        before = await environment.snapshot()
        await environment.step(Action(kind="tool_call", calls=(ToolCall.of("c", "guess", {"n": 1}),)))
        assert await environment.verify() == Outcome(completed=True, checks=(await environment.verify()).checks)
        await environment.restore(before)
        assert not (await environment.verify()).completed

    asyncio.run(run())


class Broken(Game):
    """Returns whatever it is told to."""

    def __init__(self, **answers: Any):
        self.answers = answers

    def reset(self, task: Any, seed: int) -> Any:
        return self.answers.get("reset", "Go.")

    def step(self, message: dict[str, Any]) -> Any:
        return self.answers.get("step", ([], True))

    def verify(self) -> Any:
        return self.answers.get("verify", True)


@pytest.mark.parametrize(
    ("method", "found", "expected"),
    [
        ("reset", 5, "found 5; expected a text, or messages as OpenAI dicts"),
        ("reset", [{"role": "nobody", "content": "x"}], "role"),
        ("step", [], r"found \[\]; expected \(messages, done\)"),
        ("step", ([], 1), "with done True or False"),
        ("verify", None, "found None; expected True, False, a number from 0 to 1 or an Outcome"),
        ("verify", 7, "found 7"),
    ],
)
def test_what_cannot_be_read_names_class_and_method(method: str, found: Any, expected: str):
    (episode,) = play(lambda: PythonEnvironment(Broken(**{method: found})), count=1)
    assert episode.outcome is None
    assert episode.error is not None
    with pytest.raises(DataError, match=rf"Broken\.{method}: .*{expected}"):
        raise DataError(episode.error)


def test_a_class_that_hangs_is_left_alone_and_holds_nothing_up():
    gate = threading.Event()

    class Hanging(Game):
        def step(self, message: dict[str, Any]) -> Any:
            gate.wait(60)
            return [], True

    async def run() -> None:
        environment = PythonEnvironment(Hanging(), timeout_s=0.05)
        await environment.reset(WordTask(task_id="t", words=()), seed=0)
        with pytest.raises(RunFailed, match=r"Hanging\.step: no answer within 0\.05 s"):
            await environment.step(Action(kind="final_reply", text="x"))
        with pytest.raises(RunFailed, match=r"Hanging\.verify: not called, because Hanging\.step never came back"):
            await environment.verify()

    asyncio.run(run())
    gate.set()


def test_what_the_class_raises_goes_through():
    class Raising(Game):
        def step(self, message: dict[str, Any]) -> Any:
            raise StopIteration("nothing left")

    (episode,) = play(lambda: PythonEnvironment(Raising()), count=1)
    assert episode.error == "environment.step: RuntimeError: StopIteration: nothing left"


def test_a_class_without_the_methods_is_refused():
    with pytest.raises(ConfigError, match="object: no method reset, step, verify"):
        PythonEnvironment(object())


def test_the_object_is_closed_with_its_episode():
    closed: list[str] = []

    class Holding(Game):
        def close(self) -> None:
            closed.append("closed")

    play(lambda: PythonEnvironment(Holding()), count=2)
    assert closed == ["closed"] * 2


def test_messages_of_ours_are_taken_as_they_are():
    (episode,) = play(lambda: PythonEnvironment(Broken(reset=text_message("user", "Go."))), count=1)
    assert [message.text for message in episode.session.messages][:1] == ["Go."]
    assert episode.completed
