from typing import Any

import pytest

from firstchair.core.errors import DataError
from firstchair.data.task_sources import general_thought, open_thoughts, own_tasks, tool_scale
from firstchair.data.task_sources.fields import Unusable, options_in


def thought(**fields: Any) -> dict[str, Any]:
    return {
        "question_id": 7,
        "question": "What is 2 + 2?",
        "prev_messages": None,
        "reference_answer": "4",
        "model_answer": "It is 5.",
        "question_source": "Numina/NuminaMath",
        "task": "Sums",
        **fields,
    }


@pytest.mark.parametrize(
    ("source", "domain"),
    [
        ("Numina/NuminaMath", "math"),
        ("DeepMind/Mathematics", "math"),
        ("General/NHSQA", "medical"),
        ("Medical-Collection", "medical"),
        ("BAAI/TACO", "code"),
        ("some-code-set", "code"),
        ("Glaive/Reasoning", "code"),
        ("OpenAssistant/OASST", "chat"),
        ("LMSYS/Arena", "chat"),
        ("WildChat", "chat"),
        ("General/Other", "misc"),
        ("", "misc"),
    ],
)
def test_the_domain_of_general_thought_comes_from_where_the_question_does(source, domain):
    assert general_thought.task_of(thought(question_source=source)).domain == domain


def test_the_reference_answer_counts_and_else_the_model_s():
    task = general_thought.task_of(thought())
    assert (task.gold_answer, task.area, task.dataset) == ("4", "Sums", "GeneralThought-430K")
    assert task.meta == {"gold_from": "reference", "question_source": "Numina/NuminaMath", "source_id": 7}
    task = general_thought.task_of(thought(reference_answer=" ", model_answer=r"So it is \boxed{4}."))
    assert (task.gold_answer, task.meta["gold_from"]) == ("4", "model")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"question": None}, "no question"),
        ({"reference_answer": None, "model_answer": ""}, "no answer"),
        ({"prev_messages": [{"role": "user", "content": "Hi"}]}, "earlier messages"),
    ],
)
def test_what_makes_no_task_has_a_reason(fields, reason):
    with pytest.raises(Unusable, match=reason):
        general_thought.task_of(thought(**fields))


def test_a_row_of_another_form_names_its_field():
    with pytest.raises(DataError, match="question: found int; expected text"):
        general_thought.task_of(thought(question=5))
    row = thought()
    del row["reference_answer"]
    with pytest.raises(DataError, match="reference_answer: missing; the record has model_answer"):
        general_thought.task_of(row)


def opened(answer: str, domain: str = "math", problem: str = "Solve x.") -> dict[str, Any]:
    turns = [{"from": "human", "value": problem}, {"from": "gpt", "value": answer}]
    return {"conversations": turns, "domain": domain, "source": "ai2-adapt", "difficulty": 8}


def test_the_answer_is_boxed_after_the_reasoning():
    task = open_thoughts.task_of(opened(r"<think>Maybe \boxed{1}.</think>So \boxed{2}"))
    assert (task.gold_answer, task.domain, task.area, task.difficulty) == ("2", "math", "ai2-adapt", "8")
    assert task.task_id.startswith("open_thoughts3-")


def test_a_program_is_its_own_reference():
    task = open_thoughts.task_of(opened("<think>Hm</think>Here:\n```python\nx = 1\n```", "code"))
    assert task.gold_answer == "x = 1"
    assert task.choices == ()


@pytest.mark.parametrize(
    ("answer", "domain", "reason"),
    [
        (r"<think>\boxed{1}", "math", "never ends"),
        (r"<think>\boxed{1}</think>It is 1.", "science", "no boxed answer"),
        ("<think>Hm</think>  ", "code", "no answer after"),
        ("", "math", "no answer"),
    ],
)
def test_an_open_thought_without_an_answer_makes_no_task(answer, domain, reason):
    with pytest.raises(Unusable, match=reason):
        open_thoughts.task_of(opened(answer, domain))


def test_another_domain_or_shape_is_an_error():
    with pytest.raises(DataError, match="domain: found 'law'; expected one of code, math, science"):
        open_thoughts.task_of(opened("x", "law"))
    with pytest.raises(DataError, match="conversations: expected a list of dict"):
        open_thoughts.task_of({**opened("x"), "conversations": ["x"]})


def scaled(**criteria: Any) -> dict[str, Any]:
    instructions = {
        "domain": "weather",
        "reason_for_call": "Plan a picnic.",
        "task_instructions": "Ask for the wind.",
        "known_info": "You are in Kent.",
        "unknown_info": "The date of the flood.",
    }
    return {
        "id": "12",
        "description": {"purpose": ""},
        "user_scenario": {"persona": None, "instructions": instructions},
        "initial_state": None,
        "evaluation_criteria": criteria,
    }


def test_a_tool_scale_task_is_its_scenario_with_assertions_and_golden_actions():
    arguments = {"city": "Kent", "club_id": None, "when": {"day": "2025-01-02", "hour": None}, "tags": [None, "a"]}
    task = tool_scale.task_of(
        scaled(
            actions=[{"action_id": "a1", "name": "wind", "arguments": arguments}],
            communicate_info=["12 km/h"],
            nl_assertions=["The agent is polite."],
        )
    )
    assert task.problem == "Plan a picnic.\n\nAsk for the wind.\n\nYou are in Kent."
    assert task.assertions == ("The user is told: 12 km/h", "The agent is polite.")
    assert task.gold_answer is None
    assert (task.domain, task.area) == ("tool_use", "weather")
    wanted = {"name": "wind", "arguments": {"city": "Kent", "when": {"day": "2025-01-02"}, "tags": [None, "a"]}}
    assert task.meta == {"source_id": "12", "golden_actions": [wanted], "communicate_info": ["12 km/h"]}


def test_a_scenario_that_nothing_verifies_makes_no_task():
    with pytest.raises(Unusable, match="nothing to verify it by"):
        tool_scale.task_of(scaled(actions=None, communicate_info=[], nl_assertions=[" "]))


def test_ids_depend_on_the_problem_alone():
    one = general_thought.task_of(thought())
    assert general_thought.task_of(thought(question=" what  is 2 + 2? ", question_id=8)).task_id == one.task_id
    assert general_thought.task_of(thought(question="What is 2 + 3?")).task_id != one.task_id
    assert one.task_id == "general_thought-692a9daa52e42c50"


QUESTION = "Which?\nA. a star\nB) a moon\n(C) a comet\n"


@pytest.mark.parametrize(
    ("problem", "gold", "options"),
    [
        (QUESTION, "B", ("a star", "a moon", "a comet")),
        (QUESTION, "a comet", ("a star", "a moon", "a comet")),
        (QUESTION, "D", ()),
        (QUESTION, "42", ()),
        (QUESTION, None, ()),
        ("A. only one", "A", ()),
        ("Steps:\nA. do\nB. stop\nThen which?\nA. x\nB. y\nC. z", "C", ("x", "y", "z")),
        ("A. x\nC. z", "C", ()),
    ],
)
def test_options_are_read_where_the_answer_is_one_of_them(problem, gold, options):
    assert options_in(problem, gold) == options


def test_a_multiple_choice_question_keeps_its_options():
    task = open_thoughts.task_of(opened(r"<think></think>\boxed{C}", "science", QUESTION))
    assert task.choices == ("a star", "a moon", "a comet")
    assert task.problem == QUESTION.strip()


def test_a_task_of_one_s_own_needs_a_problem_and_gets_an_id():
    task = own_tasks.task_of({"problem": "Why?", "gold_answer": None, "choices": None})
    assert task.task_id == own_tasks.task_of({"problem": " why? "}).task_id
    assert own_tasks.task_of({"problem": "Why?", "task_id": "w", "tests": ["pass"]}).tests == ("pass",)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"problem": "Why?", "golden_answer": "x"}, "golden_answer: unknown field; did you mean gold_answer?"),
        ({"problem": ""}, "problem: empty"),
        ({"gold_answer": "x"}, "problem: missing"),
        ({"problem": "Why?", "gold_answer": 5}, "Expected `str | null`, got `int`"),
        ({"problem": "Why?", "task_id": ""}, "task_id: empty"),
        ({"problem": "Why?", "choices": ["x"] * 27}, "at most 26"),
        (
            {"problem": "Why?", "preference": {"cost": -1}},
            "preference: cost: found -1; expected a weight of at least 0",
        ),
    ],
)
def test_a_row_that_is_no_task_names_its_field(row, said):
    with pytest.raises(DataError) as error:
        own_tasks.task_of(row)
    assert said in str(error.value)


def test_options_that_the_policy_would_not_see_are_written_below_the_problem():
    task = own_tasks.task_of({"problem": "Which?", "choices": ["red", "green"], "gold_answer": "B"})
    assert task.problem == "Which?\n\nA. red\nB. green"
    shown = own_tasks.task_of({"problem": task.problem, "choices": ["red", "green"], "gold_answer": "B"})
    assert shown.problem == task.problem


def test_a_preference_that_the_policy_would_not_see_is_written_below_the_problem_in_words():
    row = {"problem": "Which?", "choices": ["red", "green"], "preference": {"accuracy": 0.5, "web_search": 1}}
    task = own_tasks.task_of(row)
    assert task.problem == (
        "Which?\n\nA. red\nB. green\n\n"
        "Use web_search where you can. What counts, by weight: accuracy 0.5, web_search 1."
    )
    assert own_tasks.task_of({**row, "problem": task.problem}).problem == task.problem
    said = [
        own_tasks.task_of({"problem": "?", "preference": {name: 1}}).problem
        for name in ("accuracy", "cost", "latency")
    ]
    assert [text.split("\n\n")[1].partition(" What")[0] for text in said] == [
        *("It must be right.", "Keep it cheap.", "Be quick.")
    ]
