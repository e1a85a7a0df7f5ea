from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firstchair.chat.messages import ToolCall, assistant_message
from firstchair.chat.renderer import Renderer
from firstchair.core.errors import DataError
from firstchair.engines.base import Engine, Generation, Request, Sampling, Stop
from firstchair.engines.scripted import ScriptedEngine
from firstchair.engines.transformers_engine import TransformersEngine
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.episodes import Limits
from firstchair.rollout.rollouts import Rollout, RolloutPlan, run_rollouts
from firstchair.testing.environment import WordEnvironment, WordTask
from firstchair.testing.tokenizers import make_renderer
from firstchair.train.batching import collate
from firstchair.train.models import load_base
from firstchair.train.rollout_examples import rollout_examples
from firstchair.train.scorer import TokenScorer

RENDERER = make_renderer("tiny")
VOCAB = RENDERER.vocab_size


def play(engine: Engine, renderer: Renderer = RENDERER, tasks: int = 1, **plan: Any) -> list[Rollout]:
    policy = EnginePolicy(engine, renderer, Sampling(temperature=1.0, max_new_tokens=12), record_tokens=False)
    words = [WordTask(task_id=f"t{number}", words=("fox",)) for number in range(tasks)]

    async def collect() -> list[Rollout]:
        options = {"samples": 2, "seed": 0, **plan}
        try:
            run = run_rollouts(WordEnvironment, words, policy, RolloutPlan(**options))
            return [rollout async for rollout in run]
        finally:
            await engine.close()

    return sorted(asyncio.run(collect()), key=lambda rollout: rollout.episode.number)


def engine_of(change: Callable[[Generation], Generation] = lambda generation: generation) -> ScriptedEngine:
    """Stores the word and says so; each token has a log-probability of its own."""

    def reply(request: Request) -> Generation:
        done = request.messages[-1].role == "tool"
        text = "ok" if done else RENDERER.tool_format.render((ToolCall.of("", "store", {"word": "fox"}),))
        ids = (*RENDERER.encoder.encode(text), RENDERER.stop_ids[0])
        logprobs = tuple(-0.25 * (place + 1) for place in range(len(ids)))
        made = Generation("", Stop.END, text=text, ids=ids, logprobs=logprobs, prompt_ids=request.prompt_ids)
        return change(made)

    return ScriptedEngine(reply)


def test_examples_hold_what_was_sampled_and_what_the_sampler_thought_of_it() -> None:
    rollouts = play(engine_of(), tasks=2)
    made = rollout_examples(rollouts, vocab_size=VOCAB, max_tokens=4096)
    assert [(example.key, example.group) for example in made.examples] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert made.kept_S.tolist() == [True] * 4
    example, stream = made.examples[0], rollouts[0].segments[0]
    assert example.ids.tolist() == stream.ids
    values = example.columns["behaviour"][example.loss_mask]
    first = (
        len(RENDERER.encoder.encode(RENDERER.tool_format.render((ToolCall.of("", "store", {"word": "fox"}),)))) + 1
    )
    assert values.tolist() == [-0.25 * (n + 1) for n in range(first)] + [
        -0.25 * (n + 1) for n in range(example.trained_tokens - first)
    ]
    assert not example.columns["behaviour"][~example.loss_mask].any()
    counts = made.counts
    assert (counts.rollouts, counts.kept, counts.examples) == (4, 4, 4)
    assert counts.trained_tokens == sum(rollout.episode.sampled_tokens or 0 for rollout in rollouts)


def test_sampler_and_trainer_agree_on_the_tokens_of_a_real_model(model_dir: Path) -> None:
    renderer = Renderer.from_pretrained(model_dir)
    rollouts = play(TransformersEngine(model_dir, renderer), renderer, max_steps=3)
    made = rollout_examples(rollouts, vocab_size=renderer.vocab_size, max_tokens=4096)
    assert made.counts.kept == made.counts.truncated == 2
    scorer = TokenScorer(load_base(model_dir, precision="fp32", device=torch.device("cpu")))
    batch = collate(made.examples, layout="padded")
    with torch.no_grad():
        apart = (scorer(batch) - batch.columns["behaviour"]).abs()
    assert len(apart) == made.counts.trained_tokens > 20
    assert float(apart.max()) < 1e-4


def test_a_template_that_rewrites_history_gives_several_examples_of_one_rollout() -> None:
    (rollout, _) = play(engine_of())
    stream = rollout.segments[0]
    made = rollout_examples([replace(rollout, segments=(stream, stream))], vocab_size=VOCAB, max_tokens=4096)
    assert [example.key for example in made.examples] == [0, 0]
    assert (made.counts.kept, made.counts.examples) == (1, 2)


def test_nothing_sampled_all_masked_failed_and_too_long_are_counted_apart_and_left_out() -> None:
    (good, other) = play(engine_of())
    (empty, _) = play(engine_of(lambda made: replace(made, ids=(), logprobs=(), text="")), max_steps=1)
    (failed, _) = play(ScriptedEngine([]))
    masked = replace(good.segments[0], loss_mask=[False] * len(good.segments[0]))
    streams = [good, replace(other, segments=(masked,)), empty, failed]
    made = rollout_examples(streams, vocab_size=VOCAB, max_tokens=4096)
    assert made.kept_S.tolist() == [True, False, False, False]
    counts = made.counts
    assert (counts.kept, counts.all_masked, counts.empty, counts.failed) == (1, 1, 1, 1)
    length = len(good.segments[0])
    made = rollout_examples(streams, vocab_size=VOCAB, max_tokens=length - 1, over_long="skip")
    assert (made.examples, made.counts.over_long, made.counts.kept) == ((), 1, 0)
    with pytest.raises(DataError, match=rf"rollout t0#0: segments: {length} tokens; {length - 1} fit the trainer"):
        rollout_examples(streams, vocab_size=VOCAB, max_tokens=length - 1)


def test_the_end_token_alone_is_a_sample_like_any_other() -> None:
    end = RENDERER.stop_ids[0]
    rollouts = play(engine_of(lambda made: replace(made, ids=(end,), logprobs=(-2.0,), text="")))
    made = rollout_examples(rollouts, vocab_size=VOCAB, max_tokens=4096)
    assert [example.trained_tokens for example in made.examples] == [1, 1]


def test_a_sampler_whose_vocabulary_has_one_token_in_common_with_the_trainers_is_refused_by_name() -> None:
    """Its other ids may be any number; were they taken for the trainer's, another word would be learnt."""
    end = RENDERER.stop_ids[0]
    foreign = (VOCAB + 7, VOCAB, end)
    rollouts = play(engine_of(lambda made: replace(made, ids=foreign, logprobs=(-1.0,) * 3)))
    with pytest.raises(
        DataError, match=rf"rollout t0#0: ids: ids span \d+\.\.{VOCAB + 7}; the vocabulary has {VOCAB}"
    ):
        rollout_examples(rollouts, vocab_size=VOCAB, max_tokens=4096)


def test_a_limit_does_not_take_a_rollout_out_of_training() -> None:
    rollouts = play(engine_of(), max_steps=1, limits=Limits())
    made = rollout_examples(rollouts, vocab_size=VOCAB, max_tokens=4096)
    assert (made.counts.kept, made.counts.truncated) == (2, 2)


def test_tokens_that_the_engine_did_not_tell_are_an_error_and_not_a_silent_gap() -> None:
    def untold(made: Generation) -> Generation:
        return replace(made, logprobs=None) if made.text == "ok" else made

    with pytest.raises(
        DataError, match="rollout t0#0: segments: the engine told ids and log-probabilities of 1 of 2"
    ):
        rollout_examples(play(engine_of(untold)), vocab_size=VOCAB, max_tokens=4096)
    # A server that parses itself, and a log-probability that is none.
    for change in (
        lambda made: replace(made, message=assistant_message("hi"), ids=None),
        lambda made: replace(made, logprobs=(float("nan"),) * len(made.ids or ())),
    ):
        with pytest.raises(DataError, match="told ids and log-probabilities of 0 of"):
            rollout_examples(play(engine_of(change)), vocab_size=VOCAB, max_tokens=4096)


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("logprobs", float("nan"), "logprobs: found a log-probability that is not a finite number of at most 0"),
        ("logprobs", 0.5, "logprobs: found a log-probability"),
        ("ids", VOCAB, "ids: ids span"),
        ("ids", -1, "ids: ids span"),
        ("loss_mask", None, "lengths differ"),
    ],
)
def test_a_broken_stream_is_refused_by_name(field: str, value: Any, match: str) -> None:
    (rollout, _) = play(engine_of())
    values = list(getattr(rollout.segments[0], field))
    if value is None:
        values.append(True)
    else:
        values[-1] = value
    broken = replace(rollout, segments=(replace(rollout.segments[0], **{field: values}),))
    with pytest.raises(DataError, match=f"rollout t0#0: .*{match}"):
        rollout_examples([broken], vocab_size=VOCAB, max_tokens=4096)


def test_behaviour_has_the_precision_that_the_trainer_computes_in() -> None:
    made = rollout_examples(play(engine_of()), vocab_size=VOCAB, max_tokens=4096)
    assert made.examples[0].columns["behaviour"].dtype == np.float32
