import pytest
from tests.train.table_scorer import cut, example

from firstchair.core.errors import DataError
from firstchair.train.columns import column, row_values, with_columns


def test_a_value_of_a_row_is_read_from_its_tokens():
    rows = [example(0, {"reward": [0.25] * 3}, trained=3), example(1, {"reward": []}, trained=0)]
    (batch,) = cut([*rows, example(2, {"reward": [1.0]}, trained=1)], [3])
    assert row_values(batch, "reward") == [0.25, None, 1.0]


def test_a_value_that_changes_inside_a_row_is_refused_with_the_row():
    (batch,) = cut([example(7, {"reward": [0.5, 0.6]}, trained=2)], [1])
    with pytest.raises(DataError, match="reward: row 7: differs from token to token"):
        row_values(batch, "reward")


def test_a_missing_column_is_named_and_an_empty_batch_needs_none():
    full, filler = cut([example(0, {"old": [0.0]}, trained=1)], [1, 0])
    with pytest.raises(DataError, match=r"behaviour: missing; the examples have \['old'\]"):
        column(full, "behaviour")
    assert column(filler, "behaviour").tolist() == []
    assert row_values(filler, "reward") == [None]


def test_added_columns_leave_the_batch_alone():
    (batch,) = cut([example(0, {"old": [2.0]}, trained=1)], [1])
    more = with_columns(batch, {"reference": batch.columns["old"] + 1})
    assert {name: values.tolist() for name, values in more.columns.items()} == {"old": [2.0], "reference": [3.0]}
    assert set(batch.columns) == {"old"}
