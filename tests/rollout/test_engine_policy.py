from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from firstchair.chat.actions import Action
from firstchair.chat.messages import ImagePart, Message, ToolCall, assistant_message, text_message, tool_result
from firstchair.chat.renderer import Renderer
from firstchair.engines.base import ErrorKind, Generation, Request, Sampling, Stop
from firstchair.engines.scripted import ScriptedEngine
from firstchair.engines.transformers_engine import TransformersEngine
from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.environment import Environment, Step
from firstchair.rollout.episodes import Episode, EpisodeEnd, PolicyRequest, Task, run_episodes
from firstchair.testing.environment import STORE, WordEnvironment, WordTask
from firstchair.testing.tokenizers import make_renderer
from firstchair.traces.session import Session
from firstchair.train.base_model import base_model_dir

RENDERER = make_renderer("tiny")


def call_text(renderer: Renderer, word: str) -> str:
    return renderer.tool_format.render((ToolCall.of("", "store", {"word": word}),))


def encoded(renderer: Renderer, text: str) -> list[int]:
    """As a model may sample it: by letters, not as the tokenizer would cut it; with the end-of-turn token."""
    ids = [token for letter in text for token in renderer.encoder.encode(letter)]
    return [*ids, renderer.stop_ids[0]]


def storing(renderer: Renderer, spoiled: str = "") -> ScriptedEngine:
    """Stores what is asked for; the first call for ``spoiled`` has arguments that are not JSON."""

    def reply(request: Request) -> str:
        last = request.messages[-1]
        if last.role == "tool" and not last.is_error:
            return "ok"
        asked = next(message.text for message in reversed(request.messages) if message.role == "user")
        word = asked.rpartition(" ")[2]
        text = call_text(renderer, word)
        return text.replace("}", "", 1) if word == spoiled and last.role == "user" else text

    return ScriptedEngine(reply, encode=lambda text: encoded(renderer, text))


def play(
    policy: EnginePolicy,
    tasks: Sequence[Task],
    environment: Callable[[], Environment] = WordEnvironment,
    **limits: int,
) -> list[Episode]:
    async def collect() -> list[Episode]:
        return [episode async for episode in run_episodes(environment, tasks, policy)]

    return sorted(asyncio.run(collect()), key=lambda episode: episode.number)


def breaks(session: Session) -> list[int]:
    """Calls whose prompt does not begin with all that the call before read and wrote."""
    tokens = [call.tokens for call in session.calls]
    before: tuple[int, ...] = ()
    out = []
    for number, own in enumerate(tokens):
        assert own is not None
        if own.prompt_ids[: len(before)] != before:
            out.append(number)
        before = own.prompt_ids + own.completion_ids
    return out


def test_the_engine_policy_renders_generates_and_parses() -> None:
    engine = storing(RENDERER)
    policy = EnginePolicy(engine, RENDERER, Sampling(seed=7))
    episodes = play(policy, [WordTask(task_id="a", words=("fox", "owl")), WordTask(task_id="b", words=("eel",))])
    assert all(episode.completed for episode in episodes)
    assert len({request.sampling.seed for request in engine.seen}) == 6
    assert {request.group for request in engine.seen} == {"a#0", "b#0"}
    first = episodes[1].session.calls[0]
    assert first.tokens is not None
    assert list(first.tokens.prompt_ids) == RENDERER.prompt_ids(episodes[1].session.messages[:2], episodes[1].tools)
    assert list(first.tokens.completion_ids) == encoded(RENDERER, call_text(RENDERER, "eel"))
    assert (first.usage.input, first.usage.output) == (len(first.tokens.prompt_ids), len(first.tokens.logprobs))


def test_each_prompt_of_an_episode_is_all_that_was_read_and_sampled_before() -> None:
    (episode,) = play(EnginePolicy(storing(RENDERER), RENDERER), [WordTask(task_id="a", words=("fox", "owl", "eel"))])
    assert len(episode.session.calls) == 6
    assert breaks(episode.session) == []


def test_a_real_model_reads_its_own_tokens_again() -> None:
    renderer = Renderer.from_pretrained(base_model_dir())

    async def collect() -> list[Episode]:
        engine = TransformersEngine(base_model_dir(), renderer)
        policy = EnginePolicy(engine, renderer, Sampling(max_new_tokens=16, temperature=1.0, seed=3))
        try:
            running = run_episodes(DeskEnvironment, make_tasks(2, 5), policy, max_steps=5)
            return [episode async for episode in running]
        finally:
            await engine.close()

    episodes = asyncio.run(collect())
    assert sum(len(episode.session.calls) for episode in episodes) > 4
    assert [breaks(episode.session) for episode in episodes] == [[], []]


def test_a_template_that_rewrites_history_starts_a_new_segment() -> None:
    renderer = make_renderer("qwen3", enable_thinking=True)
    engine = storing(renderer)
    plain = engine._answer

    async def thinking(request: Request, number: int) -> Generation:
        generation = await plain(request, number)
        text = f"<think>\nhm\n</think>\n\n{generation.text}"
        return replace(generation, text=text, ids=(ids := tuple(encoded(renderer, text))), logprobs=(0.0,) * len(ids))

    engine._answer = thinking  # type: ignore[method-assign]
    (episode,) = play(EnginePolicy(engine, renderer), [WordTask(task_id="a", words=("fox", "owl"))])
    assert episode.completed
    # Reasoning goes when the user speaks again: there the third call's prompt is rendered afresh.
    assert breaks(episode.session) == [2]


def test_a_history_that_was_changed_is_rendered_afresh() -> None:
    engine = storing(RENDERER)
    policy = EnginePolicy(engine, RENDERER)
    start = (text_message("user", "Please store the word fox"),)

    def act(messages: tuple[Message, ...]) -> tuple[int, ...]:
        asyncio.run(policy.act([PolicyRequest(episode_id="a", messages=messages, tools=(STORE,))]))
        assert engine.seen[-1].prompt_ids is not None
        return engine.seen[-1].prompt_ids

    act(start)
    other = ToolCall.of("x", "store", {"word": "owl"})
    changed = (*start, assistant_message(calls=(other,)), tool_result(other, "stored owl"))
    assert list(act(changed)) == RENDERER.prompt_ids(changed, (STORE,))
    assert list(act(start)) == RENDERER.prompt_ids(start, (STORE,))


@pytest.mark.parametrize("family", ["tiny", "llama3"])
def test_a_malformed_call_is_the_models_fault_and_its_episode_goes_on(family: str) -> None:
    renderer = make_renderer(family)
    tasks = [WordTask(task_id="a", words=("fox", "owl")), WordTask(task_id="b", words=("eel",))]
    episodes = play(EnginePolicy(storing(renderer, spoiled="fox"), renderer), tasks)
    assert [(episode.completed, episode.malformed, episode.error) for episode in episodes] == [
        (True, 1, None),
        (True, 0, None),
    ]
    assert breaks(episodes[0].session) == []


class PictureEnvironment(WordEnvironment):
    """Shows an image, which a text model cannot read, for the word ``cat``."""

    async def step(self, action: Action) -> Step:
        step = await super().step(action)
        if action.calls and "cat" in action.calls[0].arguments:
            picture = Message(role="user", content=(ImagePart(url="https://example.org/cat.png"),))
            return replace(step, messages=(*step.messages, picture))
        return step


def test_a_message_that_cannot_be_rendered_ends_its_own_episode_only() -> None:
    tasks = [WordTask(task_id="a", words=("cat",)), WordTask(task_id="b", words=("eel", "owl"))]
    bad, good = play(EnginePolicy(storing(RENDERER), RENDERER), tasks, PictureEnvironment)
    assert good.completed
    assert bad.end is EpisodeEnd.ERROR
    assert bad.error is not None
    assert bad.error.startswith("bad_request: messages[4].content[0]: an image")


def test_the_engine_policy_tells_malformed_truncated_and_failed_apart() -> None:
    engine = ScriptedEngine(
        [
            "<tool_call>\n{",
            Generation(request_id="", stop=Stop.LENGTH, text="stor"),
            Generation(request_id="", stop=Stop.ERROR, error="timeout: slow", error_kind=ErrorKind.TIMEOUT),
            Generation(request_id="", stop=Stop.CANCELLED),
            assistant_message(calls=(ToolCall(id="a", name="store", arguments="[]"),)),
        ]
    )
    policy = EnginePolicy(engine, RENDERER)
    requests = [PolicyRequest(episode_id=str(n), messages=(text_message("user", "x"),), tools=()) for n in range(5)]
    replies = asyncio.run(policy.act(requests))
    assert [reply.malformed for reply in replies] == [True, True, False, False, True]
    assert [problem.kind for problem in replies[1].problems] == ["truncated"]
    assert [reply.error for reply in replies] == [None, None, "timeout: slow", "cancelled", None]
    assert replies[2].error_kind is ErrorKind.TIMEOUT
    assert replies[4].problems[0].call == 0
