import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from firstchair.train.prefixes import Segment, shared_prefixes, whole_rows

ROWS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=8)


def arrays(rows):
    return [np.array(row, np.int32) for row in rows]


def seen_from(tree, place):
    """The places that a token may look at: its own segment up to itself, and every segment that it descends from."""
    for start, end, below in tree.segments:
        yield from (own for own in range(start, end) if (own <= place < end) or end <= place < below)


@given(ROWS, st.integers(1, 4))
def test_every_token_sees_exactly_what_stands_before_it_in_its_row(rows, shortest):
    tree = shared_prefixes(arrays(rows), shortest)
    laid = np.full(tree.segments[-1].end, -1)
    for row, places in zip(rows, tree.places, strict=True):
        laid[places] = row
    assert (laid >= 0).all()
    for row, places in zip(rows, tree.places, strict=True):
        assert laid[places].tolist() == row
        for index, place in enumerate(places.tolist()):
            assert sorted(seen_from(tree, place)) == sorted(places[: index + 1].tolist())


@given(ROWS, st.integers(1, 4))
def test_beginnings_long_enough_stand_once(rows, shortest):
    tree = shared_prefixes(arrays(rows), shortest)
    for one in range(len(rows)):
        for other in range(one):
            pairs = zip(rows[one], rows[other], strict=False)
            common = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(rows[one]), len(rows[other])))
            same = int((tree.places[one][:common] == tree.places[other][:common]).sum())
            assert common - shortest < same <= common


def test_the_layout_is_depth_first():
    tree = shared_prefixes(arrays([[1, 2, 3], [1, 2, 4], [5], [1, 2, 4, 6]]), 2)
    assert tree.segments == (Segment(0, 2, 6), Segment(2, 3, 3), Segment(3, 4, 4), Segment(4, 6, 6), Segment(6, 7, 7))
    assert [places.tolist() for places in tree.places] == [[0, 1, 2], [0, 1, 3], [6], [0, 1, 4, 5]]


def test_whole_rows_lie_end_to_end():
    tree = whole_rows([2, 3])
    assert tree.segments == (Segment(0, 2, 2), Segment(2, 5, 5))
    assert [places.tolist() for places in tree.places] == [[0, 1], [2, 3, 4]]
