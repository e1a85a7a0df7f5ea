import pytest

from firstchair.rewards.answers.text_match import exact_match, normal_text, token_f1


def test_texts_are_normalised_as_squad_does():
    assert normal_text("  The Cat's  a\tHAT. ") == "cats hat"
    assert normal_text("theatre, another") == "theatre another"


@pytest.mark.parametrize(
    ("gold", "answer"), [("Paris", "paris."), ("The Beatles", "beatles"), ("+", "+"), ("the", "the")]
)
def test_exact_match(gold, answer):
    assert exact_match(gold, answer)


def test_texts_without_words_are_compared_as_they_are():
    assert not exact_match("+", "-")
    assert token_f1("+", "-") == 0.0


@pytest.mark.parametrize(
    ("gold", "answer", "f1"),
    [
        ("red green blue", "red green blue", 1.0),
        # 2 of 2 words right, 2 of 4 found: P 1, R 1/2.
        ("red green blue white", "red green", 2 / 3),
        # A word counts as often as both have it: 1 shared of 3 and 1.
        ("red", "red red red", 0.5),
        ("red", "blue", 0.0),
        ("red", "", 0.0),
    ],
)
def test_token_f1(gold, answer, f1):
    assert token_f1(gold, answer) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [("1.5 m", "15 m"), ("-5", "5"), ("C", "C++"), ("C#", "C++"), ("Na", "Na+"), ("10:30", "1030"), ("3/4", "34")],
)
def test_punctuation_that_means_something_is_kept(gold, answer):
    assert not exact_match(gold, answer)


def test_punctuation_around_words_is_not_kept():
    for gold, answer in (("U.S.A.", "USA"), ("5", "5."), ("1,000", "1000"), ("well-known", "wellknown")):
        assert exact_match(gold, answer)
