from __future__ import annotations

import asyncio
from collections.abc import Sequence

from firstchair.chat.actions import ParsedReply, Problem
from firstchair.chat.messages import Message, Tool, ToolCall, assistant_message
from firstchair.engines.base import ErrorKind, Generation, Request, Sampling, Stop
from firstchair.engines.scripted import ScriptedEngine
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.episodes import Episode, PolicyRequest, run_episodes
from firstchair.testing.environment import WordEnvironment, WordTask


class TinyRenderer:
    """As much of a renderer as a policy needs: a prompt is one id per character of the last message."""

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        return [ord(letter) for letter in messages[-1].text]

    def parse(self, text: str, tools: Sequence[Tool], salvage: bool = False) -> ParsedReply:
        if text.startswith("store:"):
            return ParsedReply(calls=(ToolCall.of("", "store", {"word": text[6:]}),))
        if text == "{":
            return ParsedReply(text=text, problems=(Problem(kind="unclosed_call", message="unclosed"),))
        return ParsedReply(text=text)


def test_the_engine_policy_renders_generates_in_one_batch_and_parses() -> None:
    def reply(request: Request) -> str:
        prompt = "".join(map(chr, request.prompt_ids or ()))
        return "store:" + prompt.rpartition(" ")[2] if prompt.startswith("Please") else "ok"

    engine = ScriptedEngine(reply, encode=lambda text: [1] * len(text))
    policy = EnginePolicy(engine, TinyRenderer(), Sampling(seed=7))  # type: ignore[arg-type]

    async def collect() -> list[Episode]:
        tasks = [WordTask(task_id="a", words=("fox", "owl")), WordTask(task_id="b", words=("eel",))]
        return [episode async for episode in run_episodes(WordEnvironment, tasks, policy)]

    episodes = sorted(asyncio.run(collect()), key=lambda episode: episode.number)
    assert all(episode.completed for episode in episodes)
    assert engine.batches == [2, 2, 1, 1]
    assert len({request.sampling.seed for request in engine.seen}) == 6
    assert {request.group for request in engine.seen} == {"a#0", "b#0"}
    usage = episodes[1].session.calls[0].usage
    assert (usage.input, usage.output) == (len("Please store the word eel"), len("store:eel"))
    tokens = episodes[1].session.calls[0].tokens
    assert tokens is not None
    assert len(tokens.prompt_ids) == usage.input
    assert len(tokens.completion_ids) == len(tokens.logprobs) == usage.output


def test_the_engine_policy_tells_malformed_truncated_and_failed_apart() -> None:
    engine = ScriptedEngine(
        [
            "{",
            Generation(request_id="", stop=Stop.LENGTH, text="store:fo"),
            Generation(request_id="", stop=Stop.ERROR, error="timeout: slow", error_kind=ErrorKind.TIMEOUT),
            Generation(request_id="", stop=Stop.CANCELLED),
            assistant_message(calls=(ToolCall(id="a", name="store", arguments="[]"),)),
        ]
    )
    policy = EnginePolicy(engine, TinyRenderer())  # type: ignore[arg-type]
    requests = [PolicyRequest(episode_id=str(n), messages=(assistant_message("x"),), tools=()) for n in range(5)]
    replies = asyncio.run(policy.act(requests))
    assert [reply.malformed for reply in replies] == [True, True, False, False, True]
    assert [problem.kind for problem in replies[1].problems] == ["truncated"]
    assert [reply.error for reply in replies] == [None, None, "timeout: slow", "cancelled", None]
    assert replies[2].error_kind is ErrorKind.TIMEOUT
    assert replies[4].problems[0].call == 0
