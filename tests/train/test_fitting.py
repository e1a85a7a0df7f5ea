import pytest

from firstchair.chat.token_conversation import Span
from firstchair.train.fitting import Fit, fit_row

# system+user 0-3, assistant 4-5, user 6-7, assistant 8-9
SPANS = [Span("system", 0, 0, 4), Span("assistant", 2, 4, 6), Span("user", 3, 6, 8), Span("assistant", 4, 8, 10)]
MASK = [False] * 4 + [True] * 2 + [False] * 2 + [True] * 2


def test_a_row_that_fits_stays_whole():
    assert fit_row(MASK, SPANS, 10, "error") == (Fit.WHOLE, 0)


def test_policies_of_refusal():
    assert fit_row(MASK, SPANS, 9, "error") == (Fit.REFUSED, 0)
    assert fit_row(MASK, SPANS, 9, "skip") == (Fit.SKIPPED, 0)


@pytest.mark.parametrize("limit", [4, 5, 6, 8, 9])
def test_truncation_begins_at_the_first_message_border_that_fits(limit):
    assert fit_row(MASK, SPANS, limit, "truncate-left-keep-last") == (Fit.TRUNCATED, 6)


def test_truncation_begins_inside_a_message_when_no_border_leaves_something_to_learn():
    assert fit_row(MASK, SPANS, 3, "truncate-left-keep-last") == (Fit.TRUNCATED, 7)


def test_the_first_token_that_is_left_is_context_so_one_token_is_nothing_to_learn():
    assert fit_row(MASK, SPANS, 1, "truncate-left-keep-last") == (Fit.EMPTIED, 0)


def test_a_cut_that_leaves_only_context_empties_the_row():
    mask = [4 <= place < 6 for place in range(10)]
    assert fit_row(mask, SPANS, 3, "truncate-left-keep-last") == (Fit.EMPTIED, 0)
