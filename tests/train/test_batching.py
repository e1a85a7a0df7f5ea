import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.train.conftest import random_examples

from firstchair.core.errors import DataError
from firstchair.train.batching import collate, cut_step
from firstchair.train.examples import Example

BUDGET = 40
LAYOUTS = st.sampled_from(["padded", "packed", "shared"])
ROWS = st.lists(st.tuples(st.integers(1, BUDGET), st.one_of(st.none(), st.integers(0, 3))), min_size=0, max_size=24)


def rows_of(shapes):
    return [
        Example(np.zeros(length, np.int32), np.zeros(length, np.bool_), key=key, group=group)
        for key, (length, group) in enumerate(shapes)
    ]


@given(ROWS, LAYOUTS, st.integers(1, 3))
def test_every_row_is_in_exactly_one_micro_batch_and_groups_stay_whole(shapes, layout, parts):
    cut = cut_step(rows_of(shapes), BUDGET, layout=layout, parts=parts)
    assert sorted(row.key for members in cut for row in members) == list(range(len(shapes)))
    assert len(cut) % parts == 0
    where = {row.key: place for place, members in enumerate(cut) for row in members}
    for group in range(4):
        assert len({where[key] for key, (_, own) in enumerate(shapes) if own == group}) <= 1


@given(ROWS, LAYOUTS)
def test_no_micro_batch_is_over_budget_unless_one_group_is(shapes, layout):
    for members in cut_step(rows_of(shapes), BUDGET, layout=layout):
        cost = sum(map(len, members)) if layout != "padded" else max(map(len, members), default=0) * len(members)
        units = {row.group if row.group is not None else -1 - row.key for row in members}
        assert cost <= BUDGET or len(units) == 1


def test_cutting_is_the_same_every_time():
    rows = random_examples([5, 9, 9, 3, 30, 12])
    cuts = [[[row.key for row in members] for members in cut_step(rows, 32, layout="packed")] for _ in range(2)]
    assert cuts[0] == cuts[1]


def test_a_packed_batch_lays_rows_end_to_end_and_restarts_positions():
    rows = [
        Example(np.array([5, 6, 7], np.int32), np.array([False, True, True])),
        Example(np.array([8, 9], np.int32), np.array([False, True])),
    ]
    batch = collate(rows, layout="packed")
    assert batch.ids.tolist() == [[5, 6, 7, 8, 9]]
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1]]
    assert batch.lengths == (3, 2)
    # Token 6 is predicted at place 0, token 7 at place 1, token 9 at place 3.
    assert batch.keep_K.tolist() == [0, 1, 3]
    assert batch.targets_K.tolist() == [6, 7, 9]
    assert batch.sample_K.tolist() == [0, 0, 1]


def test_a_padded_batch_counts_places_by_row_and_pads_on_the_right():
    rows = [
        Example(np.array([5, 6, 7], np.int32), np.array([False, False, True])),
        Example(np.array([8, 9], np.int32), np.array([False, True])),
    ]
    batch = collate(rows, layout="padded")
    assert batch.ids.tolist() == [[5, 6, 7], [8, 9, 0]]
    assert batch.keep_K.tolist() == [1, 3]
    assert batch.targets_K.tolist() == [7, 9]
    assert batch.tokens == 5


def test_columns_travel_with_their_tokens():
    mask = np.array([False, True, False, True])
    advantages = np.array([0.0, 1.5, 9.0, -2.0], np.float32)
    rows = [Example(np.arange(4, dtype=np.int32), mask, {"advantages": advantages}, group=1) for _ in range(2)]
    batch = collate(rows, layout="packed")
    assert batch.columns["advantages"].tolist() == [1.5, -2.0, 1.5, -2.0]
    assert batch.groups == (1, 1)


def test_no_rows_at_all_make_a_batch_that_trains_nothing():
    batch = collate([], layout="packed")
    assert batch.is_filler
    assert len(batch.keep_K) == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss_mask": np.zeros(2, np.bool_)}, "2 values for 3 tokens"),
        ({"columns": {"advantages": np.zeros(4, np.float32)}}, "advantages: 4 values for 3 tokens"),
        ({"ids": np.array([0, 1, 99], np.int32)}, "ids span 0..99; the model knows 50 tokens"),
        ({"ids": np.array([0, -1, 2], np.int32)}, "ids span -1..2"),
        ({"loss_mask": np.array([True, True, False])}, "the first token is in the loss"),
        ({"ids": np.zeros(0, np.int32), "loss_mask": np.zeros(0, np.bool_)}, "no tokens"),
    ],
)
def test_a_broken_example_is_refused(fields, message):
    good = {"ids": np.array([0, 1, 2], np.int32), "loss_mask": np.array([False, True, True])}
    with pytest.raises(DataError, match=message.replace(".", r"\.")):
        Example(**{**good, **fields}).validate(vocab_size=50)
