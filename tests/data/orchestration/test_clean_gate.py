"""The clean gate: every rule on both sides of its border."""

import msgspec
import pytest

from firstchair.chat.messages import TRUNCATED, assistant_message
from firstchair.data.orchestration.clean_gate import RULES, Unclean, unclean
from firstchair.rollout.orchestration.trajectory import Trajectory
from firstchair.testing.trajectories import clean_trajectory, dispatched


def reasons(trajectory: Trajectory) -> list[str]:
    return [str(finding.reason) for finding in unclean(trajectory)]


def answering(answer: str, before: str = "") -> Trajectory:
    """The clean trajectory with another answer, and another text before its marker."""
    made = clean_trajectory(final_answer=answer)
    last = assistant_message(f"{before}\nFINAL_ANSWER: {answer}")
    return msgspec.structs.replace(made, messages=(*made.messages[:-1], last))


def reasoning(text: str, thinking: str = "") -> Trajectory:
    """The clean trajectory with another text, or other thoughts, in its first step."""
    made = clean_trajectory()
    step = assistant_message(text, thinking=thinking, calls=made.messages[2].tool_calls)
    return msgspec.structs.replace(made, messages=(*made.messages[:2], step, *made.messages[3:]))


def observing(text: str, *, is_error: bool = False, answer: str = "42") -> Trajectory:
    """The clean trajectory whose expert says something else."""
    made = answering(answer)
    heard = msgspec.structs.replace(
        made.messages[3], content=assistant_message(text).content if text else (), is_error=is_error
    )
    return msgspec.structs.replace(made, messages=(*made.messages[:3], heard, *made.messages[4:]))


LONG = " ".join(["carefully"] * 250)
CODE = "```python\n# read it\n" + "\n".join(f"x{n} = {n}" for n in range(9)) + "\n```"
TABLE = "| a | b |\n|---|---|\n| 1 | 2 |"
SECTIONS = "\n".join(f"{n}. part {n}" for n in range(1, 7))
BOTH_SIDES = [
    (Unclean.EMPTY, answering(" \n"), answering("0")),
    (Unclean.ERROR_MARKER, reasoning("Traceback (most recent call last):"), reasoning("I traced it back to most")),
    (Unclean.ERROR_MARKER, answering("Rate limit exceeded, retry"), answering("the rate as the limit is reached")),
    (Unclean.ERROR_MARKER, reasoning("x", "You exceeded your current quota"), reasoning("x", "an import quota of 5")),
    (Unclean.ERROR_MARKER, reasoning("Error: insufficient_quota"), reasoning("the quota is insufficient for trade")),
    (Unclean.ERROR_MARKER, answering("7", "429 Too Many Requests"), answering("429")),
    (Unclean.THINK_TAGS, reasoning("<think>so"), reasoning("<think>so</think> ask")),
    (Unclean.THINK_TAGS, reasoning("so</think>"), reasoning("I think > you")),
    (
        Unclean.THINK_TAGS,
        reasoning("<think>a<think>b</think></think>"),
        reasoning("<think>a</think><think>b</think>"),
    ),
    *((Unclean.CUT, answering(f"x {end}"), answering(f"x {end} 1")) for end in "=,([{+-*/"),
    (Unclean.CALL_TAGS, answering("7", "<tool_call>{}"), answering("List<int>")),
    (Unclean.CALL_TAGS, reasoning("</tool_call>"), reasoning("the tool_call < 3")),
    (Unclean.CALL_TAGS, reasoning("[TOOL_CALLS] x"), reasoning("x[TOOL]")),
    (Unclean.CONTROL_TOKENS, reasoning("<|im_<|x|>start|>"), reasoning("<|im_start|>ask<|im_end|></s>")),
    (Unclean.CONTROL_TOKENS, answering("7", "[INST] do"), answering("a |> b <| c")),
    (Unclean.CONTROL_TOKENS, reasoning("half <|im_sta"), reasoning("x <| y, x < 3, List<int>, a<b>c")),
    (Unclean.REPEATED_LINE, reasoning("go on\n" * 4), reasoning("go on\n" * 3)),
    (
        Unclean.REPEATED_LINE,
        answering("f();\n" * 4 + "end"),
        answering("if (a) {\n}\nelse {\n}\nb {\n}\nc {\n}\nend"),
    ),
    (Unclean.LONG_LINE, reasoning("a b " * 501), reasoning("a b " * 500)),
    (Unclean.LONG_LINE, answering("7", "a b " * 501), answering("7", ("a b " * 400 + "\nand so\n") * 3)),
    (Unclean.MARKDOWN_ANSWER, answering(TABLE), answering("7", TABLE)),
    (Unclean.MARKDOWN_ANSWER, answering("# Result\n7"), answering(CODE)),
    (Unclean.MARKDOWN_ANSWER, answering(SECTIONS), answering(SECTIONS.rpartition("\n")[0])),
    (Unclean.LONG_ANSWER, answering("a b\n" * 500 + "x"), answering("x" + "a b\n" * 500)),
    (Unclean.LONG_FINAL, answering("7", "a b\n" * 2000), answering("7", "a b\n" * 1900)),
    # With the line of the answer 8,001 characters, and 8,000.
    (Unclean.LONG_FINAL, answering("7", "x" + "a b\n" * 1996), answering("7", "a b\n" * 1996)),
    (Unclean.STATUS_ECHO, answering("ok"), answering("okapi")),
    (Unclean.STATUS_ECHO, answering("Exit code: 0"), answering("exit at code 0 of the road")),
    (Unclean.STATUS_ECHO, answering('{"success": true}'), answering('{"success": true, "parts": [1]}')),
    (Unclean.STATUS_ECHO, answering("Command executed successfully."), answering("true")),
    (Unclean.STATUS_ECHO, answering("Wrote 12 bytes to out.txt"), answering("Written in 1867")),
    (Unclean.CAPITALS, answering("THE ANSWER IS six"), answering("THE ANSWER IS seven")),
    # 12 of 17 are 70.6%, 7 of 10 are 70%.
    (Unclean.CAPITALS, answering("ABCDEF GHIJKL mnopq"), answering("ABCD EFG hij")),
    (Unclean.CAPITALS, answering("NATO AND UN"), answering("NATO UN")),
    (Unclean.CAPITALS, answering("AB CD EF"), answering("A B C D")),
    (Unclean.LONG_WORD, answering("a" * 26), answering("a" * 25)),
    (
        Unclean.LONG_WORD,
        answering("Thequickbrownfoxjumpsoverit"),
        answering("这是一个没有空格的很长的中文句子因为中文不需要空格来分开词"),
    ),
    (Unclean.COPIED_OBSERVATION, observing(LONG[:60], answer=LONG[:60]), observing(LONG[:60], answer=LONG[:50])),
    (Unclean.COPIED_OBSERVATION, observing("six\n times" * 9, answer="six times" * 9), observing("42")),
    (Unclean.NO_DELEGATION, clean_trajectory(dispatches=(dispatched("calculator", "other"),)), clean_trajectory()),
    (Unclean.EMPTY_OBSERVATION, observing("  "), observing("0")),
    (Unclean.EMPTY_OBSERVATION, clean_trajectory(dispatches=(dispatched(empty=True),)), clean_trajectory()),
    (Unclean.ERROR_OBSERVATION, observing("No answer", is_error=True), observing("No answer")),
    (Unclean.ERROR_OBSERVATION, observing("Error: no such file"), observing("Error analysis of the data")),
    (Unclean.ERROR_OBSERVATION, clean_trajectory(dispatches=(dispatched(error_kind="timeout"),)), clean_trajectory()),
    # With the 8 of the second step's "Check it." 3 of 29, and 3 of 30.
    (Unclean.EXOTIC_SYMBOLS, reasoning("a" * 18 + "✓✓✓"), reasoning("a" * 19 + "✓✓✓")),
    (Unclean.EXOTIC_SYMBOLS, reasoning("ok ✓✓✦☃"), reasoning("∑ x² ≤ ∫ π, naïve 数学 " + "and ✓ words " * 2)),
]


@pytest.mark.parametrize(("reason", "bad", "good"), BOTH_SIDES, ids=lambda value: str(value)[:20])
def test_a_rule_drops_what_it_is_for_and_nothing_beside(reason, bad, good):
    assert str(reason) in reasons(bad)
    assert str(reason) not in reasons(good)


def test_every_rule_is_tested_on_both_sides():
    assert {reason for reason, _, _ in BOTH_SIDES} == set(RULES) == set(Unclean)


def test_a_good_trajectory_has_no_reason_and_a_bad_one_has_each():
    assert unclean(clean_trajectory()) == ()
    assert reasons(clean_trajectory(messages=(), final_answer="", dispatches=())) == ["empty", "no_delegation"]
    both = reasons(clean_trajectory(final_answer="THE ANSWER IS +", dispatches=()))
    assert both == ["cut", "capitals", "no_delegation"]


def test_a_last_message_that_the_token_limit_cut_is_cut():
    made = clean_trajectory()
    last = msgspec.structs.replace(made.messages[-1], extra={TRUNCATED: True})
    assert reasons(msgspec.structs.replace(made, messages=(*made.messages[:-1], last))) == ["cut"]


def test_a_finding_says_where_and_what():
    (finding,) = unclean(reasoning("fine", "go\n" * 5))
    assert finding.found == "step 0, 5 times: go"
    (finding,) = unclean(observing("No answer: it took too long", is_error=True))
    assert finding.found == "step 0: No answer: it took too long"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["a\n" + " " * 100_000 + "x", "<invoke " * 40_000])
def test_no_text_keeps_the_gate_busy(text):
    """A policy that repeats itself to the limit of its tokens; these took minutes."""
    assert unclean(clean_trajectory(final_answer=text))
