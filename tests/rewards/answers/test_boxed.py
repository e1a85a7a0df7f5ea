import pytest

from firstchair.rewards.answers.boxed import last_boxed


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} and then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\left\{1, \sqrt{2^{3}}\right\}}", r"\left\{1, \sqrt{2^{3}}\right\}"),
        (r"\fbox{7}", "7"),
        (r"\boxed {7}", "7"),
        (r"\boxed 5", "5"),
        (r"{\boxed{3}}", "3"),
        (r"\boxed{a \boxed{b} c}", r"a \boxed{b} c"),
        (r"\boxed{4} is not \boxed{5", "4"),
        (r"\boxed{cut \boxed{6}", "6"),
        (r"\boxed{", None),
        ("no box, 42", None),
        (r"\boxed{}", ""),
    ],
)
def test_the_last_whole_box_counts(text, found):
    assert last_boxed(text) == found


def test_many_open_boxes_are_read_once():
    assert last_boxed(r"\boxed{" * 200_000 + "1}") == "1"
