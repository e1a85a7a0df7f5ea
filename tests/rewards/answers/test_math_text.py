from fractions import Fraction

import pytest

from firstchair.rewards.answers.math_text import is_words, leaves_choice, normal_math, number_of, same_text_or_number


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("42", " $42$. "),
        (r"\frac{1}{2}", r"\dfrac{1}{2}"),
        (r"\frac{1}{2}", r"\frac12"),
        (r"(1, 2)", r"\left(1,2\right)"),
        (r"10\text{ cm}", r"10 \mathrm{cm}"),
        (r"90^\circ", "90"),
        ("1234567", "1,234,567"),
        ("x = 5", "5"),
        (r"\(x^2\)", "x^2"),
        ("50%", r"50\%"),
        ("-3", "−3"),
        ("0.5", ".5"),
        ("2", "2.0"),
        ("3/4", "0.75"),
        (r"-\frac{3}{4}", "-0.75"),
        ("1e5", "100000"),
        (r"2\times 10^{5}", "200000"),
        ("1", "1.0000009"),
        ("1000000", "1000000.9"),
    ],
)
def test_equal_as_text_or_number(gold, answer):
    assert same_text_or_number(gold, answer) is True
    assert same_text_or_number(answer, gold) is True


@pytest.mark.parametrize(
    ("gold", "answer"),
    [("1", "1.0000012"), ("1000000", "1000001.1"), ("3", "-3"), ("0", "0.000001"), ("3e-8", "1e-9"), ("1,2", "12")],
)
def test_numbers_further_apart_than_a_millionth_are_different(gold, answer):
    # 1,2 is a pair, no number, so that only algebra can say how it differs from 12.
    assert same_text_or_number(gold, answer) is (None if "," in gold else False)


@pytest.mark.parametrize(("gold", "answer"), [("x+1", "1+x"), ("50%", "0.5"), ("1/0", "2"), ("", "5"), ("", "")])
def test_what_only_algebra_can_tell(gold, answer):
    assert same_text_or_number(gold, answer) is None


@pytest.mark.parametrize("text", ["1e999999999", "9" * 5000, "1e1000", "(" * 50_000, r"\frac" * 20_000, " " * 90_000])
def test_a_monstrous_number_is_no_number(text):
    assert number_of(normal_math(text)) is None


def test_numbers_are_exact():
    assert number_of("0.1") == Fraction(1, 10)


@pytest.mark.parametrize("gold", ["see the proof", "even", r"\text{no solution}", "Paris"])
def test_words_are_no_algebra(gold):
    assert is_words(gold)


@pytest.mark.parametrize("gold", ["x+y", r"\frac{\pi}{2}", "sin x", "12 apples", "ab", "n=abc", r"\infty"])
def test_algebra_is_no_words(gold):
    assert not is_words(gold)


def test_a_space_between_digits_is_no_digit_s_neighbour():
    assert same_text_or_number("2.5", "2 1/2") is True
    assert same_text_or_number("10.5", "2 1/2") is False
    assert same_text_or_number("-2.5", "-2 1/2") is True
    assert same_text_or_number("12", "1 2") is None
    assert same_text_or_number("12345", "12 345") is True
    assert same_text_or_number("5", "5 0/0") is None


def test_an_answer_of_several_values_is_known_where_one_is_asked_for():
    for answer in (r"3 \text{ or } 5", r"\pm 5", "x=3, x=5"):
        assert leaves_choice("5", answer)
    for gold, answer in ((r"\pm 5", r"\pm 5"), ("-5, 5", r"\pm 5"), ("(3, 5)", "x=3, y=5"), ("5", "x=5")):
        assert not leaves_choice(gold, answer)
