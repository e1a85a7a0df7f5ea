import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstchair.catalog.call_rules import Matchers
from firstchair.catalog.compare import compare, compile_shape
from firstchair.catalog.fields import FieldRules, Key, parse_field, show_key
from firstchair.catalog.matchers import (
    PLAIN_MATCHERS,
    Match,
    as_number,
    collapse_space,
    parse_matcher,
    typed_equal,
)
from firstchair.core.errors import ConfigError
from firstchair.core.jsontext import canonical

SAME, DIFFERENT, UNDECIDED = Match.SAME, Match.DIFFERENT, Match.UNDECIDED

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)

ALL_SPECS = (*PLAIN_MATCHERS, "number+0.5", "number±2%", "fuzzy>=0.8", "fuzzy≥0.5")


@pytest.mark.parametrize(
    ("spec", "gold", "made", "answer"),
    [
        ("exact", "a", "a", SAME),
        ("exact", 1, True, DIFFERENT),
        ("casefold", "Straße", "STRASSE", SAME),
        ("casefold", "e\u0301t\u00e9", "\u00c9t\u00e9", SAME),
        ("casefold", "A1", "A2", DIFFERENT),
        ("ws", "a  b", "a b\n", SAME),
        ("ws", "a\tb", "a b", SAME),
        ("ws", "don't  go", "don't go", SAME),
        ("ws", "ls\nrm x", "ls rm x", DIFFERENT),
        ("ws", "echo 'a  b'", "echo 'a b'", DIFFERENT),
        ("ws", "if x:\n    y", "if x:\n  y", DIFFERENT),
        ("number", "1.5", 1.5, SAME),
        ("number", "1e3", 1000, SAME),
        ("number", "1,000", 1000, DIFFERENT),
        ("number", True, 1, DIFFERENT),
        ("number+0.5", 10, 10.5, SAME),
        ("number+0.5", 10, 10.51, DIFFERENT),
        ("number+1%", -200, -202, SAME),
        ("number+1%", -200, -202.1, DIFFERENT),
        ("path", "/a/b/", "/a//b/.", SAME),
        ("path", "a/../b", "b", SAME),
        ("path", "//a", "/a", SAME),
        ("path", "/a", "a", DIFFERENT),
        ("path", "/A", "/a", DIFFERENT),
        ("path", "", ".", DIFFERENT),
        ("url", "http://EXAMPLE.com:80", "http://example.com/", SAME),
        ("url", "http://e.com/%7ea", "http://e.com/~a", SAME),
        ("url", "http://e.com/a%2fb", "http://e.com/a/b", DIFFERENT),
        ("url", "http://e.com/?a=1&b=2", "http://e.com/?b=2&a=1", DIFFERENT),
        ("url", "http://e.com/a", "https://e.com/a", DIFFERENT),
        ("url", "http://e.com:99999/", "http://e.com/", DIFFERENT),
        ("url", "example.com", "example.com ", SAME),
        ("set", ["a", "b"], ["b", "a"], SAME),
        ("set", ["a", "a"], ["a"], DIFFERENT),
        ("set", [1], [True], DIFFERENT),
        ("set", "ab", "ba", DIFFERENT),
        ("fuzzy>=0.9", "Buy milk and bread", "buy milk and bread.", SAME),
        ("fuzzy>=0.9", "man bites dog", "dog bites man", DIFFERENT),
        ("fuzzy>=0.5", "meet at 10:00", "meet at 11:00", DIFFERENT),
        ("fuzzy>=0.5", "pay 1.5", "pay 15", DIFFERENT),
        ("fuzzy>=0.8", 5, 5, SAME),
        ("ignore", "a", None, SAME),
        ("judge", "a", "a", SAME),
        ("judge", "a", "b", UNDECIDED),
    ],
)
def test_a_matcher_answers(spec, gold, made, answer):
    assert parse_matcher(spec).compare(gold, made) is answer


@pytest.mark.parametrize(
    ("gold", "made", "answer"),
    [
        ("2024-04-01", "April 1, 2024", SAME),
        ("2024-04-01", "1 april 2024", SAME),
        ("2024-04-01", "Monday, Apr 1st, 2024", SAME),
        ("2024-04-01", "2024/04/01", SAME),
        ("2024-04-01", "1-Apr-2024", SAME),
        ("2024-04-13", "13/04/2024", SAME),
        ("2024-04-13", "04/13/2024", SAME),
        ("2024-04-04", "04/04/2024", SAME),
        ("2024-04-01", "01/04/2024", UNDECIDED),
        ("2024-05-05", "01/04/2024", DIFFERENT),
        ("01/04/2024", "01/04/2024", SAME),
        ("2024-04-01", "2024-04-02", DIFFERENT),
        ("2024-04-01", "tomorrow", UNDECIDED),
        ("2024-04-01", "April 1", UNDECIDED),
        ("2024-02-30", "2024-02-30", SAME),
        ("2024-02-30", "2024-03-01", UNDECIDED),
        ("2024-04-01T10:00:00Z", "2024-04-01T12:00:00+02:00", SAME),
        ("2024-04-01T10:00:00Z", "2024-04-01 10:00", UNDECIDED),
        ("2024-04-01T10:00", "April 1, 2024 at 10 am", SAME),
        ("2024-04-01T00:00:00", "2024-04-01", SAME),
        ("2024-04-01T00:01", "2024-04-01", DIFFERENT),
        ("2024-04-01T10:00:00.5", "2024-04-01T10:00:00.500", SAME),
        ("09:00", "9 AM", SAME),
        ("09:00", "9 PM", DIFFERENT),
        ("12:00", "12 pm", SAME),
        ("00:00", "12:00 am", SAME),
        ("09:00", "2024-04-01", DIFFERENT),
        ("25:00", "1 am", UNDECIDED),
        ("13 pm", "1 pm", UNDECIDED),
        ("10", "2024-04-10", UNDECIDED),
        (20240401, 20240401, SAME),
        (20240401, "2024-04-01", DIFFERENT),
    ],
)
def test_dates_are_instants_and_doubt_is_not_a_pass(gold, made, answer):
    date = parse_matcher("date").compare
    assert (date(gold, made), date(made, gold)) == (answer, answer)


@given(VALUES, st.sampled_from(ALL_SPECS))
def test_a_value_matches_itself_under_every_matcher(value, spec):
    assert parse_matcher(spec).compare(value, value) is SAME


@given(VALUES, VALUES, st.sampled_from(ALL_SPECS))
def test_no_matcher_raises_and_only_number_tolerance_depends_on_the_side(gold, made, spec):
    compare_values = parse_matcher(spec).compare
    answer = compare_values(gold, made)
    if "%" not in spec:
        assert compare_values(made, gold) is answer


FORMATS = st.sampled_from(["date", "time", "date-time", "uri", None, 5, ["date"]])


@given(VALUES | st.sampled_from(["2024-05-01T10:00:00Z", "2024-05-01"]), VALUES, st.sampled_from(ALL_SPECS), FORMATS)
def test_no_comparison_raises_whatever_a_model_wrote(gold, made, spec, form):
    shape = compile_shape(
        {"properties": {"a": {"type": ["string", "null"], "format": form}}}, FieldRules.of({"a": spec})
    )
    for wrap in (lambda value: value, lambda value: [value], lambda value: {"b": value}):
        assert compare(shape, {"a": wrap(gold)}, {"a": wrap(made)}).match in Match
        assert compare(shape, {"a": gold}, {"a": wrap(made)}).match in Match


def test_null_for_a_date_is_another_value():
    schema = {"properties": {"due": {"type": ["string", "null"], "format": "date-time"}}}
    shape = compile_shape(schema, FieldRules.of({"due": "date"}))
    assert compare(shape, {"due": "2024-05-01T10:00:00Z"}, {"due": None}).match is DIFFERENT
    assert compare(shape, {"due": None}, {"due": "2024-05-01T10:00:00Z"}).match is DIFFERENT


@given(VALUES, VALUES)
def test_typed_equality_is_equality_of_canonical_texts(first, second):
    assert typed_equal(first, second) == (canonical(first) == canonical(second))
    assert typed_equal(first, first)


def test_zero_and_negative_zero_are_written_apart():
    assert not typed_equal(0.0, -0.0)


@given(st.text())
def test_collapsing_space_twice_changes_nothing(text):
    assert collapse_space(collapse_space(text)) == collapse_space(text)


@pytest.mark.timeout(5)
def test_a_long_run_of_spaces_is_read_once():
    indented = "a\n" + " " * 40_000 + "b"
    assert collapse_space(indented + " " * 40_000) == indented


def test_numbers_stay_exact_at_any_size():
    assert as_number(10**40 + 1) != as_number(float(10**40))
    assert as_number("0.1") == as_number(0.1)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("fuzy>=0.8", "fuzzy"),
        ("fuzzy", "write fuzzy>=0.8"),
        ("fuzzy>=80", "threshold 80"),
        ("fuzzy>=0", "above 0"),
        ("number~3", "number\\+0.5"),
        ("caseflod", "did you mean casefold"),
        ("", "unknown"),
        (3, "found int"),
    ],
)
def test_a_bad_matcher_is_refused_with_the_fix(spec, says):
    with pytest.raises(ConfigError, match=says):
        parse_matcher(spec)


def test_a_bad_matcher_in_a_catalog_names_tool_and_field():
    with pytest.raises(ConfigError, match=r"tool Read: path: matcher 'pth'.*did you mean path"):
        Matchers.of({"Read": {"path": "pth"}})


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("query", (Key("query"),)),
        ("a.b", (Key("a"), Key("b"))),
        ("items[].due", (Key("items"), "[]", Key("due"))),
        ("a[][]", (Key("a"), "[]", "[]")),
        ("headers.*", (Key("headers"), "*")),
        ('["a.b"].c', (Key("a.b"), Key("c"))),
        ('a["*"]', (Key("a"), Key("*"))),
        ("$", ()),
    ],
)
def test_field_paths_are_read(text, path):
    assert parse_field(text) == path


@pytest.mark.parametrize("text", ["", ".a", "a.", "a..b", "a[0", "a]", 'a["b'])
def test_bad_field_paths_are_refused(text):
    with pytest.raises(ConfigError, match="expected a path like"):
        parse_field(text)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4))
def test_a_shown_path_reads_back(keys):
    path = ""
    for key in keys:
        path = show_key(path, key)
    assert parse_field(path) == tuple(Key(key) for key in keys)


def check(declared, gold, made, schema=None):
    found = compare(compile_shape(schema or {}, FieldRules.of(declared)), gold, made)
    return found.match


def test_rules_reach_elements_keys_and_nested_fields():
    assert (
        check({"items[].due": "date"}, {"items": [{"due": "1 May 2024"}]}, {"items": [{"due": "2024-05-01"}]}) is SAME
    )
    assert check({"h.*": "casefold"}, {"h": {"x": "A"}}, {"h": {"x": "a"}}) is SAME
    assert check({"h.*": "casefold", "h.y": "exact"}, {"h": {"y": "A"}}, {"h": {"y": "a"}}) is DIFFERENT
    assert check({"to": "casefold"}, {"to": ["A", "B"]}, {"to": ["a", "b"]}) is SAME
    assert check({"to": "casefold"}, {"to": ["A", "B"]}, {"to": ["b", "a"]}) is DIFFERENT
    assert check({"to": "set", "to[]": "casefold"}, {"to": ["A", "B"]}, {"to": ["b", "a"]}) is SAME
    assert check({"note": "ignore"}, {"note": "x"}, {}) is SAME
    assert check({"note": "judge"}, {"note": {"a": 1, "b": 2}}, {"note": {"b": 2, "a": 1}}) is SAME
    assert check({"note": "judge"}, {"note": {"a": 1}}, {"note": {"a": 2}}) is UNDECIDED
    assert check({"note": "judge"}, {"note": "x"}, {}) is DIFFERENT


def test_sets_pair_elements_one_to_one_at_the_least_difference():
    rules = {"legs": "set", "legs[].to": "judge"}
    gold = {"legs": [{"n": 1, "to": "Oslo"}, {"n": 2, "to": "Rome"}]}
    assert check(rules, gold, {"legs": [{"n": 2, "to": "Roma"}, {"n": 1, "to": "Oslo"}]}) is UNDECIDED
    assert check(rules, gold, {"legs": [{"n": 2, "to": "Rome"}, {"n": 3, "to": "Oslo"}]}) is DIFFERENT
    many = {"s": list(range(200))}
    assert check({"s": "set"}, many, {"s": list(range(200))[::-1]}) is SAME
    assert check({"s": "set"}, many, {"s": list(range(1000, 1200))}) is DIFFERENT


def test_tuples_maps_and_merged_schemas_supply_their_defaults():
    schema = {
        "properties": {
            "pair": {"prefixItems": [{}, {"properties": {"k": {"default": 1}}}], "items": {}},
            "map": {"additionalProperties": {"properties": {"k": {"default": "d"}}}},
            "all": {"allOf": [{"properties": {"k": {"default": None}}}, {"$ref": "#/$defs/more"}]},
        },
        "$defs": {"more": {"properties": {"j": {"default": 0}}}},
    }
    gold = {"pair": [{}, {}], "map": {"x": {}}, "all": {}}
    made = {"pair": [{}, {"k": 1}], "map": {"x": {"k": "d"}}, "all": {"k": None, "j": 0.0}}
    assert check({}, gold, made, schema) is SAME
    assert check({}, gold, {**made, "pair": [{"k": 1}, {}]}, schema) is DIFFERENT


def test_a_schema_that_refers_to_itself_or_to_nothing_ends():
    loop = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    assert check({}, {"a": 1}, {"a": 1.0}, loop) is SAME
    tree = {"properties": {"kids": {"items": {"$ref": "#"}}, "n": {"default": 0}}}
    assert check({}, {"kids": [{"kids": [{}]}]}, {"kids": [{"kids": [{"n": 0}], "n": 0}], "n": 0}, tree) is SAME
    assert check({}, {"a": 1}, {"a": 2}, {"properties": {"a": {"$ref": "http://elsewhere/x"}}}) is DIFFERENT
