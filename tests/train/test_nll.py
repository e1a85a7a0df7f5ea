import math

import numpy as np
import pytest
import torch
from tests.train.conftest import random_examples

from firstchair.core.errors import DataError
from firstchair.train.nll import NllSums, held_out_nll, nll_sums


def sums(values, rows):
    return nll_sums(torch.tensor(values, dtype=torch.float32), torch.tensor(rows))


def test_the_token_mean_and_the_sample_mean_are_kept_apart():
    # One row with one token at -10, one row with nine at 0: 10 / 10 tokens, (10 + 0) / 2 rows.
    found = sums([-10.0, *[0.0] * 9], [0, *[1] * 9])
    assert found.per_token == 1.0
    assert found.per_sample == 5.0


def test_only_tokens_in_the_mask_are_given_and_counted():
    # Mask [1, 0, 0, 1] over [-1, -100, -100, -3]: (1 + 3) / 2.
    assert sums([-1.0, -3.0], [0, 0]).per_token == 2.0


def test_sums_are_in_float64():
    values = torch.from_numpy(np.random.default_rng(0).normal(-3, 1, 200_000).astype(np.float32))
    found = nll_sums(values, torch.zeros(200_000, dtype=torch.long))
    assert found.nll == pytest.approx(-float(values.double().sum()), rel=1e-12)


def test_parts_add_up_before_anything_is_divided():
    whole = sums([-1.0, -2.0, -3.0, -6.0], [0, 0, 1, 2])
    parts = sums([-1.0, -2.0], [0, 0]) + sums([-3.0, -6.0], [0, 1])
    assert parts == whole


def test_nothing_scored_is_not_a_number():
    assert math.isnan(NllSums().per_token)
    assert math.isnan(NllSums().per_sample)


def test_lengths_that_differ_are_refused():
    with pytest.raises(DataError, match="2 log-probabilities for 1 trained tokens"):
        sums([-1.0, -2.0], [0])


@pytest.mark.parametrize("layout", ["padded", "packed", "shared"])
def test_batching_does_not_change_the_held_out_loss(scorer, layout):
    rows = random_examples([5, 9, 3, 11, 7, 4], untrained=[2])
    whole = held_out_nll(scorer, rows, micro_tokens=1000, layout="packed")
    cut = held_out_nll(scorer, rows, micro_tokens=12, layout=layout)
    assert cut.per_token == pytest.approx(whole.per_token, abs=1e-5)
    assert cut.per_sample == pytest.approx(whole.per_sample, abs=1e-5)
    assert (cut.tokens, cut.samples) == (sum(row.trained_tokens for row in rows), 5)
    assert scorer.training


def test_held_out_rows_without_a_trained_token_are_refused(scorer):
    with pytest.raises(DataError, match="no token in the loss"):
        held_out_nll(scorer, random_examples([4], untrained=[0]), micro_tokens=10, layout="packed")
