"""What is taken out of a policy's text before it is taught, and what stays."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstchair.data.orchestration.wording import (
    control_token_in,
    scrub_instruction_talk,
    strip_control_tokens,
    taught_answer,
    taught_reasoning,
    unwrap_boxed,
)

CODE = "for (int i = 0; i < n && i > -1; i++) { List<int> v; a <<= 2; s |> f <| g; x<|y; <p>hi</p> <s>old</s }"


@pytest.mark.parametrize(
    "token",
    [
        *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|start_header_id|>", "<|eot_id|>", "<|tool▁call▁begin|>"),
        *("<start_of_turn>", "<end_of_turn>", "</s>", "<bos>", "<eos>", "<pad>", "<unk>", "<｜end▁of▁sentence｜>"),
    ],
)
def test_control_tokens_go_and_what_stands_around_them_stays(token):
    assert strip_control_tokens(f"a {token}b") == "a b"
    assert control_token_in(f"a {token}b") == token


def test_code_and_comparisons_are_no_control_tokens():
    assert strip_control_tokens(CODE) == CODE
    assert strip_control_tokens("x < 3 and y > 4, a<|b, List<int>") == "x < 3 and y > 4, a<|b, List<int>"
    assert strip_control_tokens("<s>Hi <s>") == "Hi <s>"
    assert control_token_in("x < 3 | y |> z, List<int>, a << 2, [1]") is None


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (r"\boxed{42}", "42"),
        (r"so $\boxed{\frac{1}{2}}$.", r"so $\frac{1}{2}$."),
        (r"\boxed{a^{b^{c}}} and \boxed {d}", r"a^{b^{c}} and d"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"x \\ \boxed{5}", r"x \\ 5"),
        (r"{\boxed{5}} }{", r"{5} }{"),
        (r"\boxed{5", r"\boxed{5"),
        (r"\boxed{5 \boxed{6}", r"\boxed{5 6"),
        (r"\boxed and {x}", r"\boxed and {x}"),
        ("", ""),
    ],
)
def test_boxes_are_unwrapped_with_their_braces_balanced(text, plain):
    assert unwrap_boxed(text) == plain


@settings(max_examples=40)
@given(st.text(alphabet=r"\{}boxed a", max_size=60))
def test_unwrapping_loses_nothing_but_boxes(text):
    assert unwrap_boxed(text).replace("\\boxed", "").replace(" ", "").count("a") == text.count("a")
    assert len(unwrap_boxed(text)) <= len(text)
    assert unwrap_boxed("\\boxed{" + "a" + "}") == "a"


def test_boxes_in_boxes_go_however_deep():
    assert unwrap_boxed("\\boxed{" * 20_000 + "7" + "}" * 20_000) == "7"


@pytest.mark.parametrize(
    "line",
    [
        "The system prompt says to delegate.",
        "My instructions require one model at least.",
        "According to the guidelines I have to be short.",
        "I was told to end with the answer.",
        "As instructed, I call an expert first.",
        "I need the required output format.",
        "The user wants me to use a tool.",
        "The reminder asks for the answer now.",
        "I end with FINAL_ANSWER: 42",
        "following the instructions, ask",
    ],
)
def test_lines_about_the_instructions_go(line):
    assert scrub_instruction_talk(f"Multiply first.\n{line}\nThen add.") == "Multiply first.\nThen add."
    assert scrub_instruction_talk(line) == ""


@pytest.mark.parametrize(
    "line",
    [
        "The CPU executes the instructions in order.",
        "We are told that x is 5 and asked to find y.",
        "The rules of the game are simple.",
        "The format of the file is binary.",
        "The user wants to know the price.",
        "Ask the cheap model, it knows arithmetic.",
        "The guidelines for blood pressure are from 2017.",
    ],
)
def test_lines_about_the_problem_stay(line):
    assert scrub_instruction_talk(f"a\n{line}\n\nb") == f"a\n{line}\n\nb"


def test_reasoning_and_answers_as_they_are_taught():
    assert taught_reasoning("<|im_start|>The prompt says x.\nIt is \\boxed{4}.") == "It is 4."
    assert taught_answer("FINAL_ANSWER: FINAL_ANSWER: \\boxed{\\frac{1}{2}}</s>\n") == "\\frac{1}{2}"
    assert taught_answer(" 42 ") == "42"
    assert taught_answer("def f(x):\n    return x < 3") == "def f(x):\n    return x < 3"
