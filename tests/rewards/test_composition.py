from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstchair.core.config import load_recipe, validate
from firstchair.core.errors import ConfigError
from firstchair.rewards.composition import Composition, applies, compose, gated
from firstchair.rewards.samples import GATED, NOT_ASKED, NoValue

DONE = {"name": "done", "kind": "verifier", "check": "completed", "gate": True}
TONE = {"name": "tone", "question": "Polite?"}
MANNER = {"name": "manner", "kind": "judge", "mode": "rubric", "dimensions": [TONE], "weight": 0.5}
PRICE = {"name": "price", "kind": "cost", "weight": -2.0, "bounds": [0.0, 0.1]}
JUDGE = {"base_url": "http://127.0.0.1:1/v1", "model": "m"}


def made(*components: dict[str, Any], judge: Any = JUDGE) -> Composition:
    return validate(Composition, {"components": list(components), "judge": judge}, source="rewards.yaml")


def test_a_reward_is_the_weighted_sum_of_values_within_their_bounds():
    reward = made(DONE, MANNER, PRICE)
    # 1·1 + 0.5·0.25 − 2·0.03
    assert compose(reward, {}, {"done": 1.0, "manner": 0.25, "price": 0.03}) == pytest.approx(1.065)
    # 0.4 dollars count as 0.1
    assert compose(reward, {}, {"done": 1.0, "manner": 0.25, "price": 0.4}) == pytest.approx(0.925)


def test_a_gated_component_counts_at_its_worst():
    reward = made(DONE, MANNER, PRICE)
    values = {"done": 0.0, "manner": NoValue(GATED), "price": NoValue(GATED)}
    assert compose(reward, {}, values) == pytest.approx(0.0 + 0.5 * 0.0 - 2.0 * 0.1)


@pytest.mark.parametrize(
    ("values", "why", "named"),
    [
        ({"done": 1.0, "manner": NoValue("timeout", "60 s"), "price": 0.0}, "timeout", "manner: 60 s"),
        ({"done": 1.0, "manner": 1.0}, "not_graded", "price"),
        ({"done": math.nan, "manner": 1.0, "price": 0.0}, "not_finite", "done: found nan"),
        ({"done": 1.0, "manner": 1.0, "price": math.inf}, "not_finite", "price: found inf"),
        ({"done": NoValue("x"), "manner": NoValue(NOT_ASKED), "price": 0.0}, "x", "done"),
    ],
)
def test_a_component_without_a_value_leaves_no_reward_and_is_named(values, why, named):
    assert compose(made(DONE, MANNER, PRICE), {}, values) == NoValue(why, named)


@given(st.dictionaries(st.sampled_from(["done", "manner", "price"]), st.floats(allow_nan=True, allow_infinity=True)))
def test_a_reward_is_finite_and_within_what_the_weights_allow_or_there_is_none(values):
    found = compose(made(DONE, MANNER, PRICE), {}, values)
    assert isinstance(found, NoValue) or -0.2 <= found <= 1.5


def test_components_are_routed_by_labels():
    chat = {**MANNER, "when": {"row": ["chat", "thanks"], "long": True}}
    component = made(DONE, chat).components[1]
    assert applies(component, {"row": "chat", "long": True})
    assert applies(component, {"row": ["file", "thanks"], "long": True})
    assert not applies(component, {"row": "file", "long": True})
    assert not applies(component, {"row": "chat", "long": 1})
    assert not applies(component, {"long": True})


def test_a_sample_to_which_nothing_applies_has_no_reward():
    reward = made({**DONE, "when": {"row": "chat"}})
    assert compose(reward, {"row": "file"}, {"done": 1.0}) == NoValue(
        "no_component", "no component applies to the sample's labels"
    )


def test_a_gate_is_shut_below_one_and_only_where_it_applies():
    reward = made({**DONE, "when": {"row": "chat"}}, MANNER)
    assert gated(reward, {"row": "chat"}, {"done": 0.99})
    assert not gated(reward, {"row": "chat"}, {"done": 1.0})
    assert not gated(reward, {"row": "chat"}, {"done": NoValue("x")})
    assert not gated(reward, {"row": "file"}, {"done": 0.0})


CHECKED = {"name": "a", "kind": "verifier"}


@pytest.mark.parametrize(
    ("components", "message"),
    [
        ([DONE, DONE], "component done: expected a name of its own"),
        ([{**DONE, "name": "reward"}], "component reward: expected a name of its own"),
        ([{**DONE, "weight": 0}], "a weight of 0 does nothing"),
        ([{**DONE, "weight": math.inf}], "finite"),
        ([{**DONE, "check": "complete"}], "completed"),
        ([{**DONE, "gates": True}], "did you mean gate"),
        ([{**PRICE, "bounds": [1, 1]}], "expected low below high"),
        ([{"name": "p", "kind": "cost"}], "bounds"),
        ([{**DONE, "kind": "oracle"}], "kind"),
        ([], "components"),
        ([{**MANNER, "dimensions": []}], "a rubric has dimensions"),
        ([{**MANNER, "mode": "pairwise"}], "a pairwise judge has a criterion"),
        ([{**MANNER, "dimensions": [TONE, TONE]}], "every dimension needs a name of its own"),
        ([{**MANNER, "dimensions": [{**TONE, "scores": [1, 1]}]}], "worst first"),
        ([{**CHECKED, "check": "structured"}], "output_schema goes with"),
        ([{**CHECKED, "check": "structured", "output_schema": {"type": 5}}], "no JSON Schema"),
    ],
)
def test_what_does_not_hold_together_is_refused_with_the_reason(components, message):
    with pytest.raises(ConfigError, match=message):
        made(*components)


def test_a_judge_component_needs_a_judge():
    with pytest.raises(ConfigError, match="component manner asks a judge; expected a section `judge`"):
        made(MANNER, judge=None)


@pytest.mark.parametrize(
    ("verifier", "asked"),
    [
        (DONE, "completion"),
        (DONE, "task_success"),
        (DONE, "done"),
        ({**CHECKED, "check": "schema_valid"}, "valid_json"),
        ({**CHECKED, "check": "right_tool"}, "tool_choice"),
        ({**CHECKED, "check": "arguments"}, "argumentQuality"),
        ({**CHECKED, "check": "termination"}, "right-stop"),
        ({**CHECKED, "name": "mood", "check": "efficiency"}, "mood"),
        ({"name": "size", "kind": "length", "weight": -1, "bounds": [0, 9]}, "brevity"),
    ],
)
def test_a_judge_is_never_asked_what_code_of_the_same_reward_decides(verifier, asked):
    judge = {**MANNER, "dimensions": [TONE, {"name": asked, "question": "?"}]}
    with pytest.raises(ConfigError, match=f"asks a judge about '{asked}'"):
        made(verifier, judge)
    assert made(judge)


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "recipes" / "rewards").glob("*.yaml")), ids=str)
def test_every_shipped_reward_is_valid(path):
    assert load_recipe(Composition, path).components
