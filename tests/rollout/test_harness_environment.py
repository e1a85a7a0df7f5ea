"""Programs that call a model's API as environments: loops on the official SDKs, as harnesses write them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from firstchair.chat.actions import Action
from firstchair.chat.messages import ToolCall
from firstchair.rollout.environment import Closing, Environment, Outcome
from firstchair.rollout.episodes import Episode, EpisodeEnd, run_episodes
from firstchair.rollout.harness_environment import MODEL, HarnessEnvironment
from firstchair.rollout.policy import PolicyReply, PolicyRequest
from firstchair.testing.environment import WordTask

TOOLS = [
    {
        "type": "function",
        "function": {"name": "store", "parameters": {"type": "object", "properties": {"word": {"type": "string"}}}},
    }
]
TASKS = [WordTask(task_id="t0", words=("oak", "elm")), WordTask(task_id="t1", words=("ash",))]


async def openai_harness(task: WordTask, seed: int, url: str) -> Outcome:
    """Asks for each word in turn, runs calls until there are none, and judges by what was stored."""
    from openai import AsyncOpenAI

    stored: list[str] = []
    messages: list[Any] = [{"role": "system", "content": "You store words."}]
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        for word in task.words:
            messages.append({"role": "user", "content": f"Store {word}"})
            while True:
                answer = await client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)  # type: ignore[call-overload]
                message = answer.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    break
                for call in message.tool_calls:
                    stored.append(json.loads(call.function.arguments)["word"])
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": "stored"})
    return Outcome(completed=stored == list(task.words))


class Storer:
    """Stores what is asked for; ``wrong`` stores something else."""

    name, batched = "storer", False

    def __init__(self, *, wrong: bool = False):
        self._wrong = wrong

    async def act(self, requests: list[PolicyRequest]) -> list[PolicyReply]:
        return [PolicyReply(action=self._action(request)) for request in requests]

    def _action(self, request: PolicyRequest) -> Action:
        last = request.messages[-1]
        if last.role == "tool":
            return Action(kind="final_reply", text="Done.")
        word = "fir" if self._wrong else last.text.removeprefix("Store ")
        call = ToolCall.of(f"c{len(request.messages)}", "store", {"word": word})
        return Action(kind="tool_call", calls=(call,), thinking="It wants a word.")


def play(harness: Any, policy: Storer, **options: Any) -> list[Episode]:
    async def run() -> list[Episode]:
        async with asyncio.timeout(60):
            episodes = [e async for e in run_episodes(lambda: HarnessEnvironment(harness), TASKS, policy, **options)]
        # Nothing that a harness began goes on after its episode.
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, left
        return sorted(episodes, key=lambda episode: episode.number)

    return asyncio.run(run())


def test_it_is_an_environment():
    environment = HarnessEnvironment(openai_harness)
    assert isinstance(environment, Environment)
    assert isinstance(environment, Closing)


def test_a_harness_is_played_and_its_own_verdict_counts():
    episodes = play(openai_harness, Storer())
    assert [(episode.completed, episode.end, episode.error) for episode in episodes] == [
        (True, EpisodeEnd.DONE, None)
    ] * 2
    messages = episodes[0].session.messages
    assert [message.role for message in messages] == ["system", *["user", "assistant", "tool", "assistant"] * 2]
    assert messages[5].text == "Store elm"
    assert messages[3].tool_call_id == messages[2].tool_calls[0].id
    assert len(episodes[0].session.turns) == 2
    assert {tool.name for tool in episodes[0].tools} == {"store"}
    assert [episode.completed for episode in play(openai_harness, Storer(wrong=True))] == [False, False]


def test_an_episode_that_is_given_up_is_not_completed_and_leaves_nothing_running():
    ended: list[str] = []

    async def harness(task: WordTask, seed: int, url: str) -> Outcome:
        try:
            return await openai_harness(task, seed, url)
        finally:
            ended.append(task.task_id)

    episodes = play(harness, Storer(), max_steps=1)
    assert [(episode.completed, episode.end) for episode in episodes] == [(False, EpisodeEnd.MAX_STEPS)] * 2
    outcome = episodes[0].outcome
    assert outcome is not None
    assert [(check.name, check.ok) for check in outcome.checks] == [("finished", False)]
    assert sorted(ended) == ["t0", "t1"]


def test_what_a_harness_cannot_do_is_a_typed_error_and_no_verdict():
    async def raising(task: WordTask, seed: int, url: str) -> Outcome:
        raise OSError("no disk")

    async def silent(task: WordTask, seed: int, url: str) -> Outcome:
        return Outcome(completed=True)

    async def ask(url: str, messages: list[Any]) -> None:
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            await client.chat.completions.create(model=MODEL, messages=messages)

    async def rewriting(task: WordTask, seed: int, url: str) -> Outcome:
        await ask(url, [{"role": "user", "content": "Store oak"}])
        await ask(url, [{"role": "user", "content": "Store elm"}, {"role": "user", "content": "Now."}])
        return Outcome(completed=True)

    async def repeating(task: WordTask, seed: int, url: str) -> Outcome:
        for _ in range(2):
            await ask(url, [{"role": "user", "content": "Store oak"}])
        return Outcome(completed=True)

    for harness, reason in (
        (raising, "environment.reset: OSError: no disk"),
        (silent, "ended without asking its model"),
        (rewriting, r"changed messages[0] of its conversation"),
        (repeating, "asked again without adding a message"),
    ):
        for episode in play(harness, Storer()):
            assert episode.outcome is None
            assert episode.error is not None
            assert reason in episode.error
