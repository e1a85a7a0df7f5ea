import pytest

from firstchair.rollout.orchestration.final_answer import final_answer, marked_answer, salvaged_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So it is.\nFINAL_ANSWER: 42", "42"),
        ("FINAL_ANSWER: FINAL_ANSWER: 42", "42"),
        ("FINAL_ANSWER: 41\nNo.\nFINAL_ANSWER: 42", "42"),
        ("FINAL_ANSWER: 42\nFINAL_ANSWER:", "42"),
        ("**FINAL_ANSWER:** 42", "42"),
        ("**Final answer**: B", "B"),
        ("FINAL_ANSWER:\n```python\nprint(1)\n```", "```python\nprint(1)\n```"),
        ("It is 42.", "It is 42."),
        ("FINAL_ANSWER:", ""),
        ("  ", ""),
        ("FINAL_ANSWER: x ** 2", "x ** 2"),
    ],
)
def test_the_answer_is_what_stands_after_the_last_marker(text: str, answer: str) -> None:
    assert final_answer(text) == answer


def test_salvage_takes_the_last_marked_answer_of_the_policy_else_of_the_last_model() -> None:
    assert salvaged_answer(["FINAL_ANSWER: 1", "go on"], ["FINAL_ANSWER: 2"]) == "1"
    assert salvaged_answer(["go on"], ["FINAL_ANSWER: 2", "3"]) == "3"
    assert salvaged_answer(["go on"], []) == ""
    assert marked_answer("nothing") is None


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["\n" * 150_000 + "x", "FINAL_ANSWER" + " " * 150_000 + "x"])
def test_white_space_without_end_holds_no_marker_and_costs_no_time(text: str):
    assert marked_answer(text) is None
