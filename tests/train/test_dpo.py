import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.train.conftest import random_examples
from tests.train.table_scorer import TableScorer, cut, example, run_step

from firstchair.core.errors import ConfigError, DataError
from firstchair.train.batching import collate
from firstchair.train.dpo import DpoObjective, preference_loss
from firstchair.train.examples import Example
from firstchair.train.reference import Reference
from firstchair.train.rl_config import Dpo

VARIANTS = (
    Dpo(beta=0.5),
    Dpo(beta=0.5, label_smoothing=0.2),
    Dpo(beta=0.5, length_normalised=True),
    Dpo(beta=0.5, loss="ipo"),
    Dpo(beta=0.5, loss="ipo", length_normalised=True),
)


def pairs(lengths, *, seed=0, columns=("chosen", "reference")):
    """A scorer, and pairs of rows of so many trained tokens; the rejected one comes first in every second pair."""
    generator = np.random.default_rng(seed)
    logp, rows = [], []
    for group, sides in enumerate(lengths):
        for side, count in enumerate(sides):
            own = (-2 + generator.normal(size=count)).tolist()
            values = {
                "chosen": [float(side == group % 2)] * count,
                "reference": (np.array(own) + 0.5 * generator.normal(size=count)).tolist(),
            }
            named = {name: values[name] for name in columns}
            rows.append(example(len(logp), named, trained=count, group=group))
            logp.append(own)
    return TableScorer(logp), rows


def reference_loss(scorer, rows, settings):
    """The formulas pair by pair in float64."""
    losses = []
    for first in range(0, len(rows), 2):
        gains = {}
        for row in rows[first : first + 2]:
            count = row.trained_tokens
            if count:
                reference = torch.from_numpy(row.columns["reference"][1:].astype(np.float64))
                total = (scorer.logp[row.key, :count] - reference).sum()
                gains[float(row.columns["chosen"][-1])] = total / count if settings.length_normalised else total
        if len(gains) < 2:
            continue
        h = gains[1.0] - gains[0.0]
        if settings.loss == "ipo":
            losses.append((h - 1 / (2 * settings.beta)) ** 2)
        else:
            p, epsilon = 1 / (1 + torch.exp(-settings.beta * h)), settings.label_smoothing
            losses.append(-(1 - epsilon) * torch.log(p) - epsilon * torch.log(1 - p))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_loss_and_gradient_are_those_of_the_formulas(settings):
    scorer, rows = pairs([(3, 5), (2, 2), (4, 0), (1, 6)])
    loss, gradient, metrics = run_step(DpoObjective(settings), scorer, cut(rows, [4, 4]))
    expected = reference_loss(scorer, rows, settings)
    (by_hand,) = torch.autograd.grad(expected, scorer.logp)
    assert loss == pytest.approx(float(expected.detach()), abs=1e-6)
    torch.testing.assert_close(gradient, by_hand, rtol=1e-5, atol=1e-7)
    assert metrics["left_out"] == 0.25


@hypothesis_settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=4),
    st.integers(0, 4),
    st.sampled_from(VARIANTS),
)
def test_no_cut_between_pairs_changes_loss_gradient_or_metrics(lengths, place, settings):
    scorer, rows = pairs(lengths)
    whole = run_step(DpoObjective(settings), scorer, cut(rows, [len(rows)]))
    first = 2 * min(place, len(lengths))
    parts = run_step(DpoObjective(settings), scorer, cut(rows, [first, 0, len(rows) - first]))
    assert parts[0] == pytest.approx(whole[0], abs=1e-9)
    torch.testing.assert_close(parts[1], whole[1], rtol=1e-9, atol=1e-12)
    assert parts[2] == pytest.approx(whole[2], abs=1e-9, nan_ok=True)


def test_losses_by_hand():
    h = torch.tensor([0.0, 2.0])
    # −log σ(0) = log 2; −log σ(1) = log(1 + e⁻¹)
    assert preference_loss(h, loss="sigmoid", beta=0.5).tolist() == pytest.approx(
        [math.log(2), math.log1p(math.exp(-1))]
    )
    # 0.9 · log(1 + e⁻¹) + 0.1 · log(1 + e)
    smoothed = preference_loss(h, loss="sigmoid", beta=0.5, label_smoothing=0.1)[1]
    assert float(smoothed) == pytest.approx(0.9 * math.log1p(math.exp(-1)) + 0.1 * math.log1p(math.e))
    # (0 − 1)², (2 − 1)²
    assert preference_loss(h, loss="ipo", beta=0.5).tolist() == [1.0, 1.0]


def test_far_apart_is_finite():
    h = torch.tensor([-1000.0, 1000.0], requires_grad=True)
    loss = preference_loss(h, loss="sigmoid", beta=1.0, label_smoothing=0.1)
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([900.0, 100.0])
    assert h.grad.isfinite().all()


def test_metrics_by_hand():
    """Chosen gains 0.5, rejected −0.5; in the other pair both gain nothing."""
    rows = [
        example(0, {"chosen": [1.0, 1.0], "reference": [-1.0, -1.0]}, trained=2, group=0),
        example(1, {"chosen": [0.0], "reference": [-1.0]}, trained=1, group=0),
        example(2, {"chosen": [0.0], "reference": [-3.0]}, trained=1, group=1),
        example(3, {"chosen": [1.0], "reference": [-2.0]}, trained=1, group=1),
    ]
    scorer = TableScorer([[-0.75, -0.75], [-1.5], [-3.0], [-2.0]])
    _, _, metrics = run_step(DpoObjective(Dpo(beta=0.5)), scorer, cut(rows, [4]))
    assert metrics == {
        "accuracy": 0.75,  # a tie is half right
        "margin": 0.25,  # (0.5 · 1 + 0) / 2
        "chosen_logp": -1.75,
        "rejected_logp": -2.25,
        "left_out": 0.0,
    }


def test_an_empty_step_is_zero_with_a_graph():
    scorer, rows = pairs([(3, 0)])
    for batches in (cut(rows, [2]), cut([], [0])):
        loss, gradient, _ = run_step(DpoObjective(Dpo()), scorer, batches)
        assert loss == 0.0
        assert gradient.abs().sum() == 0


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        ([1.0], r"group 0: 1 rows with \[1.0\]; expected one with 1 and one with 0"),
        ([1.0, 1.0], r"group 0: 2 rows with \[1.0, 1.0\]"),
        ([0.0, 0.0], r"group 0: 2 rows with \[0.0, 0.0\]"),
        ([1.0, 0.0, 0.0], r"group 0: 3 rows"),
        ([1.0, 0.5], r"group 0: 2 rows with \[1.0, 0.5\]"),
    ],
)
def test_a_group_that_is_no_pair_is_refused(sides, message):
    rows = [example(key, {"chosen": [side]}, trained=1, group=0) for key, side in enumerate(sides)]
    with pytest.raises(DataError, match=message):
        DpoObjective(Dpo()).prepare(cut(rows, [len(rows)]), TableScorer([[0.0]] * 3))


def test_a_row_without_a_pair_is_refused():
    with pytest.raises(DataError, match="group: row 0: no group"):
        DpoObjective(Dpo()).prepare(cut([example(0, {"chosen": [1.0]}, trained=1)], [1]), TableScorer([[0.0]]))


def test_a_missing_reference_is_refused():
    scorer, rows = pairs([(1, 1)], columns=("chosen",))
    with pytest.raises(ConfigError, match="no reference to hold the policy to"):
        DpoObjective(Dpo()).prepare(cut(rows, [2]), scorer)


def test_on_a_real_model_one_step_widens_the_margin(scorer):
    rows = [
        Example(
            row.ids,
            row.loss_mask,
            {"chosen": np.full(len(row), 1.0 - row.key % 2, np.float32)},
            row.key,
            row.key // 2,
        )
        for row in random_examples([7, 6, 9, 5])
    ]
    objective = DpoObjective(Dpo(), Reference.of(scorer))
    (batch,) = objective.prepare([collate(rows, layout="packed")], scorer)
    terms = objective.loss(scorer, batch)
    assert float(terms.numerator.detach()) == pytest.approx(2 * math.log(2), rel=1e-5)
    terms.numerator.backward()
    with torch.no_grad():
        for parameter in scorer.parameters():
            parameter -= 1e-3 * parameter.grad
    assert objective.loss(scorer, batch).sums["margin"][0] > 0
