import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firstchair.train.reduction import numerator, row_means, row_sums, weight

LENGTHS = [3, 5, 2, 4, 6, 1]
MASKED = 2
ROW_TOKENS = {"token": None, "sample": None, "constant": 8}


def reduced(splits, how, values):
    """Loss and gradient when six rows (row 2 fully masked) are cut into micro-batches of ``splits`` rows."""
    leaf = values.clone().requires_grad_()
    counts = [0 if row == MASKED else length for row, length in enumerate(LENGTHS)]
    total, denominator, first, token = torch.zeros(()), 0.0, 0, 0
    for rows in splits:
        own = counts[first : first + rows]
        sample_K = torch.repeat_interleave(torch.arange(rows), torch.tensor(own))
        total = total + numerator(leaf[token : token + sum(own)], sample_K, how)
        denominator += weight(sample_K, how, ROW_TOKENS[how])
        first, token = first + rows, token + sum(own)
    loss = total / denominator
    loss.backward()
    return loss.detach(), leaf.grad


@pytest.mark.parametrize("how", ROW_TOKENS)
@pytest.mark.parametrize("splits", [(2, 3, 1), (1, 1, 1, 1, 1, 1), (3, 3), (5, 1)])
def test_cutting_a_step_into_micro_batches_changes_neither_value_nor_gradient(how, splits):
    values = torch.randn(
        sum(LENGTHS) - LENGTHS[MASKED], generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    whole, whole_gradient = reduced((6,), how, values)
    cut, cut_gradient = reduced(splits, how, values)
    torch.testing.assert_close(cut, whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(cut_gradient, whole_gradient, rtol=0, atol=1e-12)


def test_token_mode_is_the_mean_over_tokens():
    # (1 + 2 + 3 + 10) / 4
    x, sample = torch.tensor([1.0, 2.0, 3.0, 10.0]), torch.tensor([0, 0, 0, 1])
    assert numerator(x, sample, "token") / weight(sample, "token") == 4.0


def test_sample_mode_is_the_mean_of_row_means():
    # ((1 + 2 + 3) / 3 + 10) / 2
    x, sample = torch.tensor([1.0, 2.0, 3.0, 10.0]), torch.tensor([0, 0, 0, 1])
    assert numerator(x, sample, "sample") / weight(sample, "sample") == 6.0


def test_constant_mode_divides_every_row_by_the_same_number():
    # (1 + 2 + 3 + 10) / (2 rows × 8)
    x, sample = torch.tensor([1.0, 2.0, 3.0, 10.0]), torch.tensor([0, 0, 0, 1])
    assert numerator(x, sample, "constant") / weight(sample, "constant", 8) == 1.0


def test_a_fully_masked_row_leaves_no_phantom_in_any_denominator():
    sample = torch.tensor([0, 2])  # row 1 has no trained token
    assert weight(sample, "token") == 2.0
    assert weight(sample, "sample") == 2.0
    assert weight(sample, "constant", 8) == 16.0


def test_nothing_trained_gives_zero_that_still_reaches_the_graph():
    leaf = torch.zeros(3, requires_grad=True)
    numerator(leaf[:0], torch.zeros(0, dtype=torch.long), "sample").backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [0.0, 0.0, 0.0]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(0, 5))
def test_any_cut_in_two_adds_up_to_the_whole(counts, place):
    place = min(place, len(counts))
    x = torch.arange(1.0, sum(counts) + 1, dtype=torch.float64)
    rows = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    head = sum(counts[:place])
    for how, constant in ROW_TOKENS.items():
        parts = [(x[:head], rows[:head]), (x[head:], rows[head:] - place)]
        total = sum(float(numerator(part, own, how)) for part, own in parts)
        assert total == pytest.approx(float(numerator(x, rows, how)))
        assert sum(weight(own, how, constant) for _, own in parts) == weight(rows, how, constant)


def test_sums_and_means_of_rows():
    x, sample = torch.tensor([1.0, 2.0, 3.0, 10.0]), torch.tensor([0, 0, 0, 2])
    assert row_sums(x, sample, 4).tolist() == [6.0, 0.0, 10.0, 0.0]
    assert row_means(x, sample, 4).tolist() == [2.0, 0.0, 10.0, 0.0]
