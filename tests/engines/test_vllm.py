"""Against a real vLLM server on the CPU; ``firstchair.testing.vllm_server`` says how to install one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from firstchair.chat.messages import text_message
from firstchair.chat.renderer import Renderer
from firstchair.engines.base import Engine, ErrorKind, Generation, Request, Sampling, Stop
from firstchair.engines.http_engine import HttpOptions
from firstchair.engines.http_retry import RetryPolicy
from firstchair.engines.openai_engine import OpenAIEngine
from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.rollout.desk.teacher import Teacher
from firstchair.rollout.episodes import Episode, run_episodes
from firstchair.rollout.teacher_policy import TeacherPolicy
from firstchair.testing.vllm_server import MODEL, VllmServer, running_vllm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WINDOW = 2048
ONE_TRY = HttpOptions(retry=RetryPolicy(tries=1))
ENDLESS = HttpOptions(retry=RetryPolicy(tries=1), extra_body={"ignore_eos": True})


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from firstchair.train.tiny import build_model, build_tokenizer, save_model

    texts = [message.text for episode in episodes() for message in episode.session.messages]
    tokenizer = build_tokenizer(texts, vocab_size=1024)
    directory = tmp_path_factory.mktemp("tiny")
    save_model(
        build_model(len(tokenizer), hidden=64, layers=2, heads=2, intermediate=128, seed=1), tokenizer, directory
    )
    return directory


@pytest.fixture(scope="module")
def server(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    log = tmp_path_factory.mktemp("vllm") / "log"
    with running_vllm(model_dir, log, max_model_len=WINDOW) as running:
        yield running


def episodes() -> list[Episode]:
    async def run() -> list[Episode]:
        return [e async for e in run_episodes(DeskEnvironment, make_tasks(3, 0), TeacherPolicy(Teacher()))]

    return asyncio.run(run())


def requests(sampling: Sampling) -> list[Request]:
    """A decision point of each desk session, at different depths."""
    out = []
    for number, episode in enumerate(episodes()):
        messages = episode.session.messages
        ends = [index for index, message in enumerate(messages) if message.role == "assistant"]
        for end in ends[: 2 + number]:
            name = f"{number}:{end}"
            out.append(
                Request(name, messages=messages[:end], tools=episode.tools, sampling=sampling, group=str(number))
            )
    return out


async def collect(engine: Engine, asked: list[Request]) -> dict[str, Generation]:
    return {generation.request_id: generation async for generation in engine.generate(asked)}


def test_ids_and_logprobs_equal_those_of_the_transformers_engine(
    server: VllmServer, model_dir: Path, record_property: Callable[[str, object], None]
) -> None:
    from firstchair.engines.transformers_engine import TransformersEngine

    renderer = Renderer.from_pretrained(model_dir)
    asked = requests(Sampling(max_new_tokens=24))

    async def run() -> tuple[dict[str, Generation], dict[str, Generation]]:
        here, there = TransformersEngine(model_dir, renderer), OpenAIEngine(server.openai_url, MODEL, renderer)
        out = await collect(here, asked), await collect(there, asked)
        await here.close()
        await there.close()
        return out

    here, there = asyncio.run(run())
    worst = 0.0
    for request in asked:
        ours, theirs = here[request.request_id], there[request.request_id]
        assert theirs.error is None
        assert (ours.prompt_ids, ours.ids, ours.stop) == (theirs.prompt_ids, theirs.ids, theirs.stop)
        assert ours.text == theirs.text
        assert ours.logprobs is not None
        assert theirs.logprobs is not None
        assert len(ours.logprobs) == len(theirs.logprobs) == len(ours.ids or ())
        worst = max(worst, *(abs(a - b) for a, b in zip(ours.logprobs, theirs.logprobs, strict=True)))
    record_property("largest_logprob_difference", worst)
    assert worst < 1e-3


def test_a_seeded_sample_repeats_and_is_read_the_same_in_chat_and_token_mode(
    server: VllmServer, model_dir: Path
) -> None:
    renderer = Renderer.from_pretrained(model_dir)
    asked = requests(Sampling(max_new_tokens=8, temperature=1.0, seed=5))[:3]

    async def run(**options: object) -> dict[str, Generation]:
        engine = OpenAIEngine(server.openai_url, MODEL, **options)  # type: ignore[arg-type]
        out = await collect(engine, asked)
        await engine.close()
        return out

    tokens, again = asyncio.run(run(renderer=renderer)), asyncio.run(run(renderer=renderer))
    chat = asyncio.run(run(mode="chat", ask_ids=True))
    for request in asked:
        name = request.request_id
        assert tokens[name].ids == again[name].ids
        assert chat[name].error is None
        # The server renders the same prompt from messages and tools as we do.
        assert chat[name].prompt_ids == tokens[name].prompt_ids
        assert chat[name].ids is not None
        assert len(chat[name].logprobs or ()) == len(chat[name].ids or ())


def test_a_prompt_that_does_not_fit_is_a_context_overflow(server: VllmServer) -> None:
    async def run() -> dict[str, Generation]:
        engine = OpenAIEngine(server.openai_url, MODEL, options=ONE_TRY)
        asked = [
            Request("long", prompt_ids=(7,) * (WINDOW + 1)),
            Request("chat", messages=(text_message("user", "word " * 3 * WINDOW),)),
            Request("fits", prompt_ids=(7, 8), sampling=Sampling(max_new_tokens=1)),
        ]
        out = await collect(engine, asked)
        await engine.close()
        return out

    out = asyncio.run(run())
    assert out["long"].error_kind is ErrorKind.CONTEXT_OVERFLOW, out["long"].error
    assert out["chat"].error_kind is ErrorKind.CONTEXT_OVERFLOW, out["chat"].error
    assert out["fits"].error is None


def test_a_cancelled_request_leaves_the_server_serving(server: VllmServer) -> None:
    async def run() -> dict[str, Generation]:
        engine = OpenAIEngine(server.openai_url, MODEL, options=ENDLESS)
        endless = Sampling(max_new_tokens=WINDOW - 10, temperature=1.0)
        asked = [Request("slow", prompt_ids=(7, 8), sampling=endless)]
        asked.append(Request("quick", prompt_ids=(7, 8), sampling=Sampling(max_new_tokens=1)))
        out = {}
        async for generation in engine.generate(asked):
            out[generation.request_id] = generation
            if generation.request_id == "quick":
                await engine.cancel("slow")
        again = await collect(engine, [replace(asked[1], request_id="again")])
        await engine.close()
        return out | again

    out = asyncio.run(run())
    assert out["slow"].stop is Stop.CANCELLED
    assert out["quick"].error is None
    assert out["again"].error is None


def test_a_server_killed_in_the_middle_of_a_batch_gives_typed_errors(server: VllmServer) -> None:
    """Stands last: it takes the server away."""

    async def run() -> dict[str, Generation]:
        engine = OpenAIEngine(server.openai_url, MODEL, options=ENDLESS, concurrency=4)
        endless = Sampling(max_new_tokens=WINDOW - 10, temperature=1.0)
        asked = [Request("quick", prompt_ids=(7, 8), sampling=Sampling(max_new_tokens=1))]
        asked += [Request(f"slow{number}", prompt_ids=(7, 8), sampling=endless) for number in range(6)]
        out: dict[str, Generation] = {}
        stream: AsyncIterator[Generation] = engine.generate(asked)
        async for generation in stream:
            out[generation.request_id] = generation
            if generation.request_id == "quick":
                server.kill()
        await engine.close()
        return out

    out = asyncio.run(run())
    assert len(out) == 7
    assert out["quick"].error is None
    for name, generation in out.items():
        if name != "quick":
            assert generation.stop is Stop.ERROR
            # Its processes die one after the other; the last may still say that the first is gone.
            assert generation.error_kind in (ErrorKind.CONNECTION, ErrorKind.SERVER), generation.error
