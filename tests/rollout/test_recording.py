from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from firstchair.core.errors import ConfigError
from firstchair.engines.base import ErrorKind
from firstchair.rollout.actor_app import build_app
from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.server import TeacherServer, listening_socket, running_app, running_teacher
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.rollout.desk.teacher import Teacher
from firstchair.rollout.episodes import Episode, Policy, run_episodes
from firstchair.rollout.http_policy import HttpPolicy
from firstchair.rollout.policy import PolicyRequest
from firstchair.rollout.recording import FastOpenAIPolicy, record_sessions
from firstchair.rollout.teacher_policy import TeacherPolicy
from firstchair.testing.environment import WordEnvironment, WordExpert, WordTask
from firstchair.testing.fault_server import Answer, FaultServer
from firstchair.traces.store import TraceStore

TASKS = [WordTask(task_id="a", words=("fox", "owl")), WordTask(task_id="b", words=("eel",))]


@pytest.fixture(scope="module")
def server() -> Any:
    with running_app(build_app(WordExpert(), "expert"), model="expert") as running:
        yield running


async def in_order(episodes: AsyncIterator[Episode]) -> list[Episode]:
    return sorted([episode async for episode in episodes], key=lambda episode: episode.number)


def play(policy: Policy, tasks: Any = TASKS, env: Callable[[], Any] = WordEnvironment) -> list[Episode]:
    async def run() -> list[Episode]:
        async with policy:  # type: ignore[attr-defined]
            return await in_order(run_episodes(env, tasks, policy, source="scripted"))

    return asyncio.run(run())


def content(episodes: list[Episode]) -> list[Any]:
    """What was said and done, without provider fields such as signatures."""
    return [
        [
            (m.role, m.text, m.thinking, [(c.name, c.arguments) for c in m.tool_calls], m.is_error)
            for m in e.session.messages
        ]
        for e in episodes
    ]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_the_official_sdks_play_what_the_expert_plays_in_process(
    server: TeacherServer, dialect: Any, stream: bool
) -> None:
    url = server.openai_url if dialect == "openai" else server.base_url
    episodes = play(HttpPolicy(dialect, url, "expert", stream=stream))
    assert all(episode.completed for episode in episodes), [episode.error for episode in episodes]

    async def local() -> list[Episode]:
        return await in_order(run_episodes(WordEnvironment, TASKS, TeacherPolicy(WordExpert())))

    assert content(episodes) == content(asyncio.run(local()))
    extras = [call.extra for e in episodes for message in e.session.messages for call in message.tool_calls]
    assert not any(extras), "nothing of the SDK's own may be recorded"
    call = episodes[0].session.calls[0]
    assert (call.provider, call.model, call.message_index) == (dialect, "expert", 2)
    assert call.usage.input > 0
    assert call.usage.output > 0
    assert (call.latency_ms or 0) > 0


@pytest.mark.parametrize(
    ("dialect", "options", "sent"),
    [
        ("openai", {}, {"max_tokens": 9}),
        ("openai", {"max_tokens": 7}, {"max_tokens": 7}),
        ("openai", {"max_completion_tokens": 11}, {"max_completion_tokens": 9}),
        ("anthropic", {}, {"max_tokens": 9}),
    ],
)
def test_an_actions_limit_on_tokens_is_sent(dialect: Any, options: dict[str, int], sent: dict[str, int]) -> None:
    async def ask(url: str) -> None:
        async with HttpPolicy(dialect, url, "m", max_retries=0, options=options) as policy:
            await policy.act([PolicyRequest(episode_id="x", messages=(), tools=(), max_tokens=9)])

    with FaultServer(lambda seen, number: Answer()) as server:
        asyncio.run(ask(server.base_url))
    assert {name: value for name, value in server.seen[0].body.items() if "tokens" in name} == sent


def test_recording_gives_what_the_sdk_gives_and_goes_into_a_store(server: TeacherServer, tmp_path: Path) -> None:
    async def run() -> list[Episode]:
        return await in_order(record_sessions(server.openai_url, TASKS, WordEnvironment, model="expert"))

    episodes = asyncio.run(run())
    assert content(episodes) == content(play(HttpPolicy("openai", server.openai_url, "expert")))
    assert {episode.session.source for episode in episodes} == {"scripted"}
    with TraceStore.open(tmp_path / "store.db") as store:
        catalogs = {episode.session.catalog_id: episode.tools for episode in episodes}
        assert store.add([episode.session for episode in episodes], catalogs).added == 2
        assert store.add([episode.session for episode in episodes], catalogs).duplicates == 2


def test_a_history_that_is_rewritten_is_sent_as_it_now_is(server: TeacherServer) -> None:
    async def run() -> list[str]:
        async with FastOpenAIPolicy(server.openai_url, "expert") as policy:
            words = []
            for word in ("fox", "owl"):
                seen = (await WordEnvironment().reset(WordTask(task_id="x", words=(word,)), 0)).messages
                (reply,) = await policy.act([PolicyRequest(episode_id="same", messages=seen, tools=())])
                assert reply.action is not None
                words.append(reply.action.calls[0].arguments)
            return words

    assert asyncio.run(run()) == ['{"word": "fox"}', '{"word": "owl"}']


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer({"error": {"message": "slow down"}}, 429), ErrorKind.RATE_LIMITED),
        (Answer({"error": {"message": "maximum context length"}}, 400), ErrorKind.CONTEXT_OVERFLOW),
        (Answer(b"{"), ErrorKind.BAD_RESPONSE),
        (Answer({"id": "x", "choices": [{"finish_reason": "pause"}]}), ErrorKind.BAD_RESPONSE),
        (Answer({"id": "x"}, cut_after=2), ErrorKind.CONNECTION),
    ],
)
def test_a_failing_server_is_a_typed_error_of_each_episode(answer: Answer, kind: ErrorKind) -> None:
    with FaultServer(lambda seen, number: answer) as server:
        fast = play(FastOpenAIPolicy(f"{server.base_url}/v1", "m"))
        sdk = play(HttpPolicy("openai", f"{server.base_url}/v1", "m", max_retries=0))
    for episode in fast + sdk:
        assert episode.outcome is None
        assert (episode.error or "").startswith(f"{kind}: ")


CHUNK = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
DELTA = {**CHUNK, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Do"}, "finish_reason": None}]}
START = {"id": "x", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None}
EVENTS = (
    {"type": "message_start", "message": {**START, "usage": {"input_tokens": 1, "output_tokens": 0}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Do"}},
)
CUT_STREAMS = {
    "openai": f"data: {json.dumps(DELTA)}\n\n",
    "anthropic": "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in EVENTS),
}


@pytest.mark.parametrize("honest", [True, False])
@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_a_stream_that_ends_before_its_end_is_an_error_and_never_a_short_reply(dialect: Any, honest: bool) -> None:
    body = CUT_STREAMS[dialect].encode()
    # Either the server closes as if all were said, or the connection breaks.
    answer = Answer(body if honest else body + b"x" * 99, headers={"content-type": "text/event-stream"})
    answer = replace(answer, cut_after=None if honest else len(body))
    with FaultServer(lambda seen, number: answer) as server:
        url = f"{server.base_url}/v1" if dialect == "openai" else server.base_url
        (episode,) = play(HttpPolicy(dialect, url, "m", stream=True, max_retries=0), TASKS[1:])
    assert episode.outcome is None
    assert (episode.error or "").partition(":")[0] in ("bad_response", "connection")


def test_the_teachers_process_ends_when_its_parent_is_killed() -> None:
    script = (
        "import os\nfrom firstchair.rollout.desk.server import running_teacher\n"
        "with running_teacher() as s:\n    print(s.pid, flush=True)\n    os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    deadline = time.monotonic() + 20
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the server outlived its parent"
        time.sleep(0.05)


def test_a_server_killed_in_the_middle_fails_what_was_running_and_aborts_nothing() -> None:
    tasks = make_tasks(60, 5)

    async def run(server: TeacherServer) -> list[Episode]:
        out = []
        assert server.pid is not None
        async with aclosing(record_sessions(server.openai_url, tasks, DeskEnvironment, concurrency=4)) as episodes:
            async for episode in episodes:
                out.append(episode)
                if len(out) == 10:
                    os.kill(server.pid, signal.SIGKILL)
        return out

    with running_teacher() as server:
        episodes = asyncio.run(run(server))
    assert len(episodes) == 60
    good = [episode for episode in episodes if episode.error is None]
    assert len(good) >= 10
    assert all(episode.completed for episode in good)
    lost = [episode for episode in episodes if episode.error is not None]
    assert lost
    assert all(episode.outcome is None for episode in lost)
    assert all((episode.error or "").startswith("connection: ") for episode in lost)


def test_the_teacher_in_its_own_process_records_what_it_does_in_this_one() -> None:
    tasks = make_tasks(8, 2)

    async def local() -> list[Episode]:
        teacher = Teacher(mistake_rate=0.3, seed=4)
        return await in_order(run_episodes(DeskEnvironment, tasks, TeacherPolicy(teacher), seed=1))

    async def remote(url: str) -> list[Episode]:
        return await in_order(record_sessions(url, tasks, DeskEnvironment, seed=1))

    with running_teacher(mistake_rate=0.3, seed=4) as server:
        recorded = asyncio.run(remote(server.openai_url))
        anthropic = play(HttpPolicy("anthropic", server.base_url, server.model), tasks[:2], DeskEnvironment)
    assert content(recorded) == content(asyncio.run(local()))
    assert [len(e.session.turns) for e in anthropic] == [len(task.turns) for task in tasks[:2]]


def test_a_port_that_is_taken_is_told_with_what_to_do() -> None:
    with listening_socket("127.0.0.1", 0) as sock, pytest.raises(ConfigError, match="choose another --port"):
        listening_socket("127.0.0.1", sock.getsockname()[1])


def test_every_request_names_its_episode_where_a_gateway_wants_it() -> None:
    tasks = [TASKS[1], TASKS[1]]
    with FaultServer(lambda seen, number: Answer(status=400)) as server:

        async def run(**options: str) -> list[Episode]:
            url = f"{server.base_url}/v1"
            return await in_order(record_sessions(url, tasks, WordEnvironment, concurrency=1, **options))

        asyncio.run(run(session_header="x-session"))
        assert [seen.headers["x-session"] for seen in server.seen] == ["b", "b#1"]
        asyncio.run(run())
        assert "x-session" not in server.seen[-1].headers
