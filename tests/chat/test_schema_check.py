import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from firstchair.chat.formats import FORMATS
from firstchair.chat.messages import Tool
from firstchair.chat.schema_check import _predicate, check_arguments, schema_problem

KEYS = st.sampled_from(["a", "b", "c"])
SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, -2.0]) | st.text("xy", max_size=3)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
TYPES = ["object", "array", "string", "boolean", "null", "number", "integer"]


def _leaf():
    return st.one_of(
        st.sampled_from(TYPES).map(lambda kind: {"type": kind}),
        st.lists(st.sampled_from(TYPES), min_size=1, max_size=2, unique=True).map(lambda kinds: {"type": kinds}),
        st.lists(SCALARS, min_size=1, max_size=3).map(lambda items: {"enum": items}),
        SCALARS.map(lambda item: {"const": item}),
        st.integers(-2, 2).map(lambda limit: {"minimum": limit, "exclusiveMaximum": 2}),
        st.integers(0, 2).map(lambda limit: {"minLength": limit, "maxItems": limit}),
        st.just({"title": "x", "description": "y", "default": 3}),
        st.just({"pattern": "^x"}),
        st.just({"not": {"type": "null"}}),
    )


def _wider(inner):
    return st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(KEYS, inner, max_size=3)},
            optional={
                "required": st.lists(KEYS, unique=True, max_size=2),
                "additionalProperties": st.booleans() | inner,
            },
        ),
        inner.map(lambda schema: {"type": "array", "items": schema}),
        st.lists(inner, min_size=1, max_size=2).map(lambda schemas: {"anyOf": schemas}),
    )


SCHEMAS = st.recursive(_leaf(), _wider, max_leaves=5)


@given(SCHEMAS, VALUES)
def test_the_compiled_check_agrees_with_jsonschema(schema, value):
    expected = Draft202012Validator(schema).is_valid(value)
    quick = _predicate(schema)
    if quick is not None:
        assert quick(value) is expected
    assert (check_arguments(schema, value) is None) is expected


@pytest.mark.parametrize(
    ("schema", "value", "path"),
    [
        ({"properties": {"a": {"items": {"type": "integer"}}}}, {"a": [1, "x"]}, "$.a[1]"),
        ({"required": ["a"]}, {}, "$"),
        ({"properties": {"a": {"enum": [1]}}}, {"a": True}, "$.a"),
        ({"properties": {"a": {"pattern": "^x"}}}, {"a": "y"}, "$.a"),
    ],
)
def test_a_fault_names_its_path(schema, value, path):
    fault = check_arguments(schema, value)
    assert fault is not None
    assert fault.path == path


HOLDS_ITSELF: dict = {"properties": {}}
HOLDS_ITSELF["properties"]["a"] = HOLDS_ITSELF
DEEP: dict = {"type": "integer"}
for _ in range(3000):
    DEEP = {"anyOf": [DEEP]}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "any"},
        {"properties": {"a": {"type": "str"}}},
        {"$ref": "https://example.invalid/schema.json"},
        {"properties": "x"},
        {"required": "a"},
        {"pattern": "("},
        {"properties": {"a": {"multipleOf": 0}}},
        {"required": [{"a": 1}]},
        {"properties": {"a": {"type": [["string"]]}}},
        {"patternProperties": {"(": False}},
        HOLDS_ITSELF,
        DEEP,
    ],
)
def test_a_broken_or_remote_schema_faults_nothing_and_can_be_told(schema):
    assert check_arguments(schema, {"a": 1}) is None
    if "$ref" not in schema:
        assert schema_problem(schema) is not None


def test_a_sound_schema_has_no_problem():
    assert schema_problem({"type": "object", "properties": {"a": {"type": "string"}}}) is None


@pytest.mark.parametrize(
    ("schema", "fits", "breaks"),
    [
        ({"pattern": r"^\p{L}+$"}, "é", "1"),  # JSON Schema's patterns, not those of Python's re
        ({"patternProperties": {"^x": {"type": "integer"}}}, {"x": 1, "y": "z"}, {"x": "z"}),
        ({"patternProperties": {"^x": True}, "additionalProperties": False}, {"x": 1}, {"y": 1}),
        ({"patternProperties": {"^x": True}, "additionalProperties": {"type": "null"}}, {"x": 1}, {"y": 1}),
        ({"multipleOf": 0.01}, 10**400, 0.015),
        ({"multipleOf": 0.7}, 7 * 10**400, 10**400),
    ],
)
def test_patterns_and_steps_hold_for_every_value(schema, fits, breaks):
    assert schema_problem(schema) is None
    assert check_arguments(schema, fits) is None
    assert check_arguments(schema, breaks) is not None


def test_a_pattern_that_takes_too_long_is_not_checked():
    slow = "^(a|aa)+$"
    text = "a" * 60 + "b"
    assert check_arguments({"pattern": slow}, text) is None
    names = {"patternProperties": {slow: False}, "additionalProperties": False}
    assert check_arguments(names, {text: 1}) is None
    assert check_arguments(names, {"b": 1}) is not None
    assert check_arguments({"pattern": "^(a+)+$"}, text) is not None


def test_a_reply_under_a_broken_schema_can_be_read():
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 5}}\n</tool_call>'
    for broken in ({"multipleOf": 0}, {"pattern": "("}, {"required": [{}]}):
        tool = Tool(name="f", parameters={"type": "object", "properties": {"a": broken}})
        assert FORMATS["hermes"].parse(call, (tool,)).calls[0].name == "f"
