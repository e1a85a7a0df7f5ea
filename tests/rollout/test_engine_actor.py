"""A model of ours behind HTTP: the harness sees over the wire what it would see without one."""

from __future__ import annotations

import asyncio

import pytest

from firstchair.chat.actions import Action
from firstchair.chat.messages import ToolCall, assistant_message, text_message, tool_result
from firstchair.core.errors import RunFailed
from firstchair.engines.base import Generation, Request, Stop
from firstchair.engines.scripted import ScriptedEngine
from firstchair.rollout.actor_app import build_app
from firstchair.rollout.desk.server import running_app
from firstchair.rollout.engine_actor import EngineActor
from firstchair.rollout.episodes import Episode
from firstchair.rollout.recording import record_sessions
from firstchair.testing.environment import STORE, WordEnvironment, WordTask
from firstchair.testing.tokenizers import make_renderer

RENDERER = make_renderer("tiny")
TASKS = [WordTask(task_id="a", words=("fox", "owl")), WordTask(task_id="b", words=("eel",))]
ASK = (text_message("system", "You store words."), text_message("user", "Please store the word fox"))


def call_text(*words: str) -> str:
    return RENDERER.tool_format.render(tuple(ToolCall.of("", "store", {"word": word}) for word in words))


def storing() -> ScriptedEngine:
    def reply(request: Request) -> str:
        if request.messages[-1].role == "tool":
            return "ok"
        asked = next(message.text for message in reversed(request.messages) if message.role == "user")
        return call_text(asked.rpartition(" ")[2])

    return ScriptedEngine(reply)


def act(engine: ScriptedEngine, *messages: object) -> Action:
    return asyncio.run(EngineActor(engine, RENDERER).act((*ASK, *messages), (STORE,)))  # type: ignore[arg-type]


def test_a_harness_works_with_the_model_over_http_and_no_call_id_comes_twice() -> None:
    async def play(url: str) -> list[Episode]:
        return [episode async for episode in record_sessions(url, TASKS, WordEnvironment, model="ours")]

    with running_app(build_app(EngineActor(storing(), RENDERER), "ours"), model="ours") as server:
        episodes = sorted(asyncio.run(play(server.openai_url)), key=lambda episode: episode.number)
    assert [episode.error for episode in episodes] == [None, None]
    assert [episode.completed for episode in episodes] == [True, True]
    ids = [call.id for message in episodes[0].session.messages for call in message.tool_calls]
    assert ids == ["call_0", "call_1"]


def test_requests_that_come_together_are_under_way_together() -> None:
    gate = asyncio.Event()

    async def reply(request: Request) -> str:
        waiting.append(request.request_id)
        if len(waiting) == 2:
            gate.set()
        await gate.wait()
        return "ok"

    async def both() -> list[Action]:
        actor = EngineActor(ScriptedEngine(reply), RENDERER)
        other = (ASK[0], text_message("user", "Please store the word owl"))
        async with asyncio.timeout(10):
            return list(await asyncio.gather(actor.act(ASK, (STORE,)), actor.act(other, (STORE,))))

    waiting: list[str] = []
    assert [action.text for action in asyncio.run(both())] == ["ok", "ok"]
    assert len(set(waiting)) == 2


def test_the_calls_of_one_conversation_share_a_group_and_other_conversations_do_not() -> None:
    engine = ScriptedEngine(["ok", "ok", "ok"])
    call = ToolCall.of("call_0", "store", {"word": "fox"})
    act(engine)
    act(engine, assistant_message(calls=(call,)), tool_result(call, "stored"))
    actor = EngineActor(engine, RENDERER)
    asyncio.run(actor.act((text_message("user", "Hello"),), (STORE,)))
    groups = [request.group for request in engine.seen]
    assert groups[0] == groups[1] != groups[2]


def test_parallel_calls_go_on_counting_from_the_calls_of_the_conversation() -> None:
    call = ToolCall.of("call_0", "store", {"word": "fox"})
    action = act(ScriptedEngine([call_text("owl", "eel")]), assistant_message(calls=(call,)), tool_result(call, "ok"))
    assert [made.id for made in action.calls] == ["call_1", "call_2"]


def test_a_call_with_broken_arguments_goes_out_as_it_was_written_for_the_harness_to_judge() -> None:
    action = act(ScriptedEngine([call_text("fox").replace('"}', "}")]))
    assert [call.name for call in action.calls] == ["store"]
    assert action.calls[0].parsed() is None


def test_text_that_cannot_be_read_is_a_reply_as_it_was_written() -> None:
    action = act(ScriptedEngine(["<think>what now"]))
    assert (action.kind, action.calls, action.text) == ("final_reply", (), "<think>what now")


def test_an_engine_that_fails_is_an_error_and_no_answer() -> None:
    failed = Generation(request_id="", stop=Stop.ERROR, error="out of memory")
    with pytest.raises(RunFailed, match="out of memory"):
        act(ScriptedEngine([failed]))
