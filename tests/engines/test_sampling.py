"""Choosing tokens: greedy, truncated, seeded, masked."""

from __future__ import annotations

import math

import pytest
import torch

from firstchair.engines.base import Sampling
from firstchair.engines.sampling import Sampler, draw_uniforms

CPU = torch.device("cpu")
LOGITS = torch.tensor([[1.0, 3.0, 2.0, -1.0]])


def test_greedy_takes_the_best_and_reports_its_raw_log_probability():
    tokens, logprobs = Sampler([Sampling()], CPU).choose(LOGITS, [])
    assert tokens.tolist() == [1]
    total = sum(math.exp(x) for x in (1, 3, 2, -1))
    assert logprobs.tolist() == pytest.approx([3 - math.log(total)])


def test_a_draw_picks_the_token_whose_stretch_it_falls_in():
    # Probabilities 0.5, 0.3, 0.2: stretches [0, 0.5), [0.5, 0.8), [0.8, 1).
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    sampler = Sampler([Sampling(temperature=1.0)], CPU)
    draws = {0.0: 0, 0.49: 0, 0.51: 1, 0.79: 1, 0.81: 2, 1 - 2**-53: 2}
    assert {draw: int(sampler.choose(logits, [draw])[0]) for draw in draws} == draws


@pytest.mark.parametrize(
    ("settings", "possible"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.51}, {0, 1}),
        ({"top_p": 0.81, "top_k": 2}, {0, 1}),
        ({}, {0, 1, 2}),
    ],
)
def test_top_k_and_top_p_keep_the_smallest_set_of_best_tokens(settings, possible):
    logits = torch.tensor([[0.5, 0.3, 0.2, 0.0]]).log()
    sampler = Sampler([Sampling(temperature=1.0, **settings)], CPU)
    assert {int(sampler.choose(logits, [n / 100])[0]) for n in range(100)} == possible


def test_the_log_probability_is_that_of_temperature_one_without_truncation():
    sampler = Sampler([Sampling(temperature=2.0, top_k=1)], CPU)
    tokens, logprobs = sampler.choose(LOGITS, [0.3])
    assert logprobs.tolist() == pytest.approx([float(LOGITS.log_softmax(-1)[0, int(tokens[0])])])


def test_a_mask_limits_the_choice_but_not_the_log_probability():
    allowed = torch.tensor([[True, False, False, True]])
    tokens, logprobs = Sampler([Sampling()], CPU).choose(LOGITS, [], allowed)
    assert tokens.tolist() == [0]
    assert logprobs.tolist() == pytest.approx([float(LOGITS.log_softmax(-1)[0, 0])])


def test_rows_keep_their_own_settings():
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log().repeat(3, 1)
    sampler = Sampler([Sampling(temperature=1.0), Sampling(), Sampling(temperature=1.0, top_k=1)], CPU)
    assert sampler.hot == [0, 2]
    assert sampler.choose(logits, [0.9, 0.9])[0].tolist() == [2, 0, 0]


def test_sampled_shares_follow_the_distribution():
    logits = torch.tensor([[0.6, 0.3, 0.1]]).log().repeat(4000, 1)
    draws = draw_uniforms(Sampling(temperature=1.0, seed=5), 4000)
    sampler = Sampler([Sampling(temperature=1.0)] * 4000, CPU)
    counts = sampler.choose(logits, draws)[0].bincount(minlength=3) / 4000
    # Three standard errors of a share of 0.5 in 4,000 draws are 0.024.
    assert counts.tolist() == pytest.approx([0.6, 0.3, 0.1], abs=0.024)


def test_draws_repeat_with_the_seed_and_only_then():
    hot = Sampling(temperature=1.0, seed=3)
    assert draw_uniforms(hot, 5) == draw_uniforms(hot, 5)
    fresh = Sampling(temperature=1.0)
    assert draw_uniforms(fresh, 5) != draw_uniforms(fresh, 5)
    assert draw_uniforms(Sampling(), 5) == []
