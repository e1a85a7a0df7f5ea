import pytest

from firstchair.rewards.answers.choice import gold_option, option_of

FRUIT = ("apple", "pear", "apple pie", "a cherry")
MANY = tuple(f"option text {number}" for number in range(10))


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("C", "C"),
        ("c", "C"),
        ("(c)", "C"),
        ("**B.**", "B"),
        (r"\boxed{D}", "D"),
        (r"So \boxed{\text{D}}", "D"),
        ("A", "A"),
        ("The answer is C", "C"),
        ("answer: (B)", "B"),
        ("First I thought the answer is A, but the answer is D.", "D"),
        ("The answer is C, and option B is wrong", "C"),
        ("The answer is A because apples fall", "A"),
        ("I choose B", "B"),
        ("Option D fits", "D"),
        ("B) pear", "B"),
        ("It must be B", "B"),
        ("Vitamin-C is in B", "B"),
        ("pear", "B"),
        ("The pear!", "B"),
        ("It is an apple pie, surely", "C"),
        ("A cherry", "D"),
    ],
)
def test_an_option_is_named(answer, letter):
    assert option_of(answer, FRUIT) == letter


@pytest.mark.parametrize(
    "answer",
    [
        "I think so",
        "A fruit",
        "A plum is what I want",
        "B or C",
        "Both (B) and (C)",
        "apple or pear",
        "Z",
        "the answer is not known",
        "A) apple\nB) pear\nC) apple pie\nD) a cherry",
        "",
    ],
)
def test_words_hedges_and_lists_name_none(answer):
    assert option_of(answer, FRUIT) is None


def test_i_and_a_are_words_unless_they_are_the_answer():
    assert option_of("I", MANY) == "I"
    assert option_of("(I)", MANY) == "I"
    assert option_of("The answer is I.", MANY) == "I"
    assert option_of("My answer: I would say H", MANY) == "H"
    assert option_of("Well, I say: F", MANY) == "F"
    assert option_of("A thing that I know is E", MANY) == "E"


@pytest.mark.parametrize(("gold", "letter"), [("b", "B"), ("(B)", "B"), ("Pear", "B"), ("E", None), ("plum", None)])
def test_the_reference_is_a_letter_or_an_option(gold, letter):
    assert gold_option(gold, FRUIT) == letter


@pytest.mark.parametrize("text", ["answer" + " " * 200_000, "." * 200_000, "answer is " * 20_000, "(" * 100_000])
def test_long_answers_are_read_once(text):
    assert option_of(text, FRUIT) is None


@pytest.mark.parametrize(
    "answer", ["The answer is A or B", "The answer is **B** or **C**", "A and B", "A, B", "neither A nor B", "B/C"]
)
def test_an_answer_that_leaves_a_choice_names_none(answer):
    assert option_of(answer, ["red", "green", "blue", "black"]) is None
