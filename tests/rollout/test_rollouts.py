from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from firstchair.chat.actions import Action
from firstchair.chat.messages import ToolCall
from firstchair.core.errors import ConfigError
from firstchair.engines.base import ErrorKind, Generation, Request, Sampling, Stop
from firstchair.engines.scripted import ScriptedEngine
from firstchair.engines.transformers_engine import TransformersEngine
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.environment import Environment, Observation, Outcome, Step
from firstchair.rollout.episodes import EpisodeEnd, Limits, Task
from firstchair.rollout.rollouts import STATUS, Rollout, RolloutPlan, RolloutStatus, run_rollouts
from firstchair.testing.environment import WordEnvironment, WordTask
from firstchair.testing.tiny_models import tiny_model
from firstchair.testing.tokenizers import make_renderer, make_tokenizer

RENDERER = make_renderer("tiny")


def text_of(request: Request) -> str:
    """Stores what is asked for, then says so."""
    if request.messages[-1].role == "tool":
        return "ok"
    word = next(m.text for m in reversed(request.messages) if m.role == "user").rpartition(" ")[2]
    return RENDERER.tool_format.render((ToolCall.of("", "store", {"word": word}),))


def encode(text: str) -> list[int]:
    return [*RENDERER.encoder.encode(text), RENDERER.stop_ids[0]]


def engine_of(reply: Callable[[Request], Any] = text_of) -> ScriptedEngine:
    return ScriptedEngine(reply, encode=encode)


def word_tasks(count: int, words: int = 1) -> list[WordTask]:
    return [WordTask(task_id=f"t{number}", words=("fox", "owl", "eel")[:words]) for number in range(count)]


def play(
    engine: Any,
    tasks: Sequence[Task],
    environment: Callable[[], Environment] = WordEnvironment,
    **plan: Any,
) -> list[Rollout]:
    policy = EnginePolicy(engine, RENDERER, record_tokens=False)

    async def collect() -> list[Rollout]:
        options = {"samples": 1, "seed": 0, **plan}
        return [rollout async for rollout in run_rollouts(environment, tasks, policy, RolloutPlan(**options))]

    found = sorted(asyncio.run(collect()), key=lambda rollout: rollout.episode.number)
    assert policy._streams == {}
    return found


def test_every_way_to_end_has_a_status() -> None:
    assert STATUS.keys() == set(EpisodeEnd)
    assert {STATUS[end] for end in (EpisodeEnd.DONE, EpisodeEnd.MALFORMED)} == {RolloutStatus.COMPLETED}


def test_a_rollout_holds_every_token_that_was_sampled_and_none_twice() -> None:
    engine = engine_of()
    (rollout,) = play(engine, word_tasks(1, words=3))
    assert (rollout.status, rollout.solved) == (RolloutStatus.COMPLETED, True)
    (stream,) = rollout.segments
    stream.validate(need_logprobs=True)
    sampled = [stream.ids[span.start : span.end] for span in stream.assistant_spans()]
    assert sampled == [encode(text_of(request)) for request in engine.seen]
    assert stream.trained_tokens == sum(map(len, sampled)) == rollout.episode.sampled_tokens
    assert stream.ids[-1] == RENDERER.stop_ids[0]
    last = engine.seen[-1].prompt_ids
    assert last is not None
    assert list(last) == stream.ids[: len(last)]
    assert [rollout.episode.session.messages[span.message_index].role for span in stream.assistant_spans()] == [
        "assistant"
    ] * 6
    assert all(call.tokens is None for call in rollout.episode.session.calls)


def test_the_samples_of_a_group_start_equal_and_are_sampled_with_seeds_of_their_own() -> None:
    environments: dict[str, set[int]] = defaultdict(set)

    class Spy(WordEnvironment):
        async def reset(self, task: WordTask, seed: int) -> Observation:
            environments[task.task_id].add(seed)
            return await super().reset(task, seed)

    def seeds(**plan: Any) -> tuple[dict[str, int], list[Rollout]]:
        engine = engine_of()
        rollouts = play(engine, word_tasks(2), Spy, samples=3, **plan)
        return {request.request_id: request.sampling.seed or 0 for request in engine.seen}, rollouts

    first, rollouts = seeds()
    assert [(r.group, r.sample) for r in rollouts] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert [len(found) for found in environments.values()] == [1, 1]
    assert len(set(first.values())) == len(first) == 12
    assert len({rollout.sampling_seed for rollout in rollouts}) == 6
    assert seeds(concurrency=1)[0] == first
    assert not set(first.values()) & set(seeds(step=1)[0].values())
    assert not set(first.values()) & set(seeds(seed=1)[0].values())
    assert [len(found) for found in environments.values()] == [3, 3]


def test_a_task_that_comes_twice_gives_two_groups_of_different_samples() -> None:
    rollouts = play(engine_of(), [*word_tasks(1), *word_tasks(1)], samples=2)
    assert [(r.group, r.sample) for r in rollouts] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len({rollout.sampling_seed for rollout in rollouts}) == 4


def test_the_weights_of_every_call_are_kept() -> None:
    engine = engine_of()
    plain = engine._answer

    async def versioned(request: Request, number: int) -> Generation:
        return replace(await plain(request, number), revision=f"v{number // 2}")

    engine._answer = versioned  # type: ignore[method-assign]
    (rollout,) = play(engine, word_tasks(1, words=2))
    assert rollout.revisions == ("v0", "v0", "v1", "v1")


class Hanging(WordEnvironment):
    """Never answers the word ``owl``."""

    async def step(self, action: Action) -> Step:
        if action.calls and "owl" in action.calls[0].arguments:
            await asyncio.Event().wait()
        return await super().step(action)


async def never(request: Request) -> str:
    await asyncio.Event().wait()
    return ""


@pytest.mark.parametrize(
    ("limits", "end"),
    [
        ({"max_steps": 1}, EpisodeEnd.MAX_STEPS),
        ({"limits": Limits(tool_s=0.01)}, EpisodeEnd.TOOL_TIME),
        ({"limits": Limits(max_tokens=10_000, wall_s=0.5)}, EpisodeEnd.WALL_CLOCK),
    ],
)
def test_a_limit_cuts_an_episode_which_is_judged_as_it_stands(limits: dict[str, Any], end: EpisodeEnd) -> None:
    class Waiting(WordEnvironment):
        async def step(self, action: Action) -> Step:
            await asyncio.sleep(0.6 if end is EpisodeEnd.WALL_CLOCK else 0.02)
            return await super().step(action)

    (rollout,) = play(engine_of(), word_tasks(1, words=3), Waiting, **limits)
    assert (rollout.episode.end, rollout.status) == (end, RolloutStatus.TRUNCATED)
    assert rollout.episode.steps == 1
    assert rollout.solved is False
    assert rollout.episode.tool_s >= 0.02


def test_the_wall_clock_cuts_a_generation_and_keeps_what_was_sampled_before() -> None:
    async def reply(request: Request) -> str:
        return await never(request) if len(request.messages) > 2 else text_of(request)

    engine = engine_of(reply)
    (rollout,) = play(engine, word_tasks(1), limits=Limits(wall_s=0.5))
    assert (rollout.episode.end, rollout.episode.steps) == (EpisodeEnd.WALL_CLOCK, 1)
    (stream,) = rollout.segments
    assert len(stream.assistant_spans()) == 1
    assert stream.spans[-1].role == "assistant"
    assert engine._running._tasks == {}


def test_an_action_is_cut_where_the_tokens_of_its_episode_are_spent() -> None:
    def reply(request: Request) -> Generation:
        ids = tuple(encode(text_of(request)))[: request.sampling.max_new_tokens]
        stop = Stop.END if ids[-1] == RENDERER.stop_ids[0] else Stop.LENGTH
        text = RENDERER.encoder.decode(ids[:-1] if stop is Stop.END else ids)
        zeros = (0.0,) * len(ids)
        return Generation("", stop, text=text, ids=ids, logprobs=zeros, prompt_ids=request.prompt_ids)

    first = len(encode(text_of(Request("", messages=(*_opening(),)))))
    (rollout,) = play(engine_of(reply), word_tasks(1, words=2), limits=Limits(max_tokens=first + 5))
    assert (rollout.episode.end, rollout.status) == (EpisodeEnd.MAX_TOKENS, RolloutStatus.TRUNCATED)
    assert rollout.episode.sampled_tokens == first + 5 == rollout.segments[0].trained_tokens
    assert rollout.episode.malformed == 0


def _opening() -> Any:
    return asyncio.run(WordEnvironment().reset(word_tasks(1)[0], 0)).messages


def test_a_conversation_that_outgrows_the_context_is_cut_and_one_that_never_fitted_has_failed() -> None:
    def reply(request: Request) -> Any:
        if len(request.messages) > 2 or "t1" in request.request_id:
            kind = ErrorKind.CONTEXT_OVERFLOW
            return Generation("", Stop.ERROR, error=f"{kind}: 9 tokens, 8 fit", error_kind=kind)
        return text_of(request)

    grown, never_fitted = play(engine_of(reply), word_tasks(2))
    assert (grown.episode.end, grown.status, grown.solved) == (EpisodeEnd.CONTEXT, RolloutStatus.TRUNCATED, True)
    assert (never_fitted.status, never_fitted.solved) == (RolloutStatus.FAILED, None)
    assert never_fitted.episode.error == "context_overflow: 9 tokens, 8 fit"
    assert never_fitted.segments == ()


def test_an_environment_that_hangs_or_raises_fails_alone_and_has_no_score() -> None:
    tasks = [*word_tasks(2, words=2), WordTask(task_id="broken", words=("fox",), fault="step")]
    tasks[1] = WordTask(task_id="fine", words=("fox",))
    hung, fine, broken = play(engine_of(), tasks, Hanging, limits=Limits(stall_s=0.5))
    assert (hung.status, hung.solved, hung.episode.outcome) == (RolloutStatus.FAILED, None, None)
    assert hung.episode.error == "environment.step: no answer within 0.5 s"
    assert (fine.status, fine.solved) == (RolloutStatus.COMPLETED, True)
    assert (broken.status, broken.solved) == (RolloutStatus.FAILED, None)


def test_unreadable_actions_are_the_models_own_end_and_not_a_cut() -> None:
    (rollout,) = play(engine_of(lambda request: "<tool_call>{"), word_tasks(1), limits=Limits(max_malformed=1))
    assert (rollout.episode.end, rollout.status) == (EpisodeEnd.MALFORMED, RolloutStatus.COMPLETED)
    assert rollout.solved is False
    assert len(rollout.segments[0].assistant_spans()) == 2


def test_a_cancelled_generation_aborts_its_episode() -> None:
    engine = engine_of(lambda request: never(request) if "t0" in request.request_id else text_of(request))
    policy = EnginePolicy(engine, RENDERER)

    async def run() -> list[Rollout]:
        found = []
        async for rollout in run_rollouts(WordEnvironment, word_tasks(2), policy, RolloutPlan(samples=1, seed=0)):
            found.append(rollout)
            (hung,) = engine._running._tasks or [None]
            if hung:
                assert await engine.cancel(hung)
        return found

    fine, aborted = asyncio.run(run())
    assert (fine.status, fine.solved) == (RolloutStatus.COMPLETED, True)
    assert (aborted.status, aborted.solved, aborted.episode.error) == (RolloutStatus.ABORTED, None, "cancelled")


class Held(WordEnvironment):
    """Counts what it opens and closes."""

    held: ClassVar[Counter[str]] = Counter()

    async def reset(self, task: WordTask, seed: int) -> Observation:
        self.held["open"] += 1
        return await super().reset(task, seed)

    async def step(self, action: Action) -> Step:
        await asyncio.sleep(0)
        return await super().step(action)

    async def close(self) -> None:
        self.held["open"] -= 1
        self.held["closed"] += 1
        if self._task.fault == "close":
            raise RuntimeError("cannot close")


def test_every_environment_is_closed_once_and_one_that_cannot_is_noted_without_losing_its_judgement() -> None:
    Held.held.clear()
    tasks = [*word_tasks(3), WordTask(task_id="bad", words=("fox",), fault="close")]
    tasks += [WordTask(task_id=f"no {fault}", words=("fox",), fault=fault) for fault in ("reset", "step", "verify")]
    rollouts = play(engine_of(), tasks, Held)
    assert Held.held == {"open": 0, "closed": 7}
    assert [rollout.solved for rollout in rollouts] == [True, True, True, True, None, None, None]
    assert rollouts[3].episode.session.meta["close_error"] == "environment.close: RuntimeError: cannot close"


@pytest.fixture(scope="module")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with the tiny tokenizer."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = make_tokenizer("tiny")
    tiny_model("Qwen3", vocab_size=len(tokenizer), max_position_embeddings=1024).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.mark.parametrize("how", ["left", "cancelled"])
def test_a_run_that_is_left_or_cancelled_leaves_nothing_running(tiny_dir: Path, how: str) -> None:
    Held.held.clear()

    async def run() -> None:
        engine = TransformersEngine(tiny_dir, RENDERER)
        policy = EnginePolicy(engine, RENDERER, Sampling(max_new_tokens=8, temperature=1.0), record_tokens=False)
        tasks_before = asyncio.all_tasks()
        stream = run_rollouts(Held, word_tasks(50, words=3), policy, RolloutPlan(samples=4, seed=0, concurrency=32))

        async def first() -> None:
            async for _ in stream:
                if how == "left":
                    return

        running = asyncio.ensure_future(first())
        if how == "cancelled":
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert policy._streams
            running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await stream.aclose()
        assert Held.held["open"] == 0
        assert Held.held["closed"] >= 32
        assert policy._streams == {}
        assert engine._live == {}
        assert asyncio.all_tasks() == tasks_before
        # The worker drops cancelled jobs at its next step; a call into it waits for that.
        assert not await engine._when_idle(lambda: engine._serving.runner.jobs())
        await engine.close()

    before = threading.active_count()
    asyncio.run(run())
    assert threading.active_count() <= before + 1  # the default executor's, in which the engine was closed


def test_real_rollouts_repeat_whatever_the_concurrency(tiny_dir: Path) -> None:
    async def run(concurrency: int) -> list[Rollout]:
        engine = TransformersEngine(tiny_dir, RENDERER)
        policy = EnginePolicy(engine, RENDERER, Sampling(max_new_tokens=8, temperature=1.0), record_tokens=False)
        plan = RolloutPlan(samples=3, seed=0, concurrency=concurrency, max_steps=3)
        try:
            return [rollout async for rollout in run_rollouts(WordEnvironment, word_tasks(2), policy, plan)]
        finally:
            await engine.close()

    streams = []
    for concurrency in (1, 6):
        rollouts = sorted(asyncio.run(run(concurrency)), key=lambda rollout: rollout.episode.number)
        streams.append([rollout.segments[0].ids for rollout in rollouts])
        revisions = {revision for rollout in rollouts for revision in rollout.revisions}
        assert len(revisions) == 1
        assert "" not in revisions
    assert streams[0] == streams[1]
    assert len({tuple(ids) for ids in streams[0]}) == 6


def test_an_engine_that_dies_in_mid_batch_fails_what_it_was_asked_and_the_run_ends(tiny_dir: Path) -> None:
    async def run() -> list[Rollout]:
        engine = TransformersEngine(tiny_dir, RENDERER)
        policy = EnginePolicy(engine, RENDERER, Sampling(max_new_tokens=64, temperature=1.0))
        found = []
        async for rollout in run_rollouts(WordEnvironment, word_tasks(6), policy, RolloutPlan(samples=2, seed=0)):
            found.append(rollout)
            await engine.close()
        return found

    rollouts = asyncio.run(run())
    assert len(rollouts) == 12
    failed = [rollout for rollout in rollouts if rollout.status is RolloutStatus.FAILED]
    assert failed
    assert all(rollout.solved is None and "closed" in (rollout.episode.error or "") for rollout in failed)


def test_a_thousand_episodes_live_at_once_without_a_thread_each() -> None:
    most = 0

    class Counting(WordEnvironment):
        live = 0

        async def reset(self, task: WordTask, seed: int) -> Observation:
            nonlocal most
            Counting.live += 1
            most = max(most, Counting.live)
            return await super().reset(task, seed)

        async def verify(self) -> Outcome:
            Counting.live -= 1
            return await super().verify()

    before = set(threading.enumerate())  # of other tests' too, some of which end meanwhile
    rollouts = play(engine_of(), word_tasks(4), Counting, samples=300, concurrency=1000)
    assert (len(rollouts), most) == (1200, 1000)
    assert set(threading.enumerate()) <= before
    assert all(rollout.solved for rollout in rollouts)


def test_a_plan_without_samples_is_refused() -> None:
    with pytest.raises(ConfigError, match="samples: found 0; expected at least 1"):
        RolloutPlan(samples=0, seed=0)


def test_an_iterator_of_tasks_is_read_as_environments_become_free() -> None:
    taken = []

    def tasks() -> Any:
        for task in word_tasks(100):
            taken.append(task)
            yield task

    async def first() -> AsyncIterator[Rollout]:
        policy = EnginePolicy(engine_of(), RENDERER)
        stream = run_rollouts(WordEnvironment, tasks(), policy, RolloutPlan(samples=2, seed=0, concurrency=4))
        rollout = await anext(stream)
        await stream.aclose()
        return rollout

    asyncio.run(first())  # type: ignore[arg-type]
    assert len(taken) < 10
