import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstchair.catalog.call_rules import Matchers
from firstchair.catalog.verdict import Scorer, Verdict, score
from firstchair.chat.actions import Action, ParsedReply, Problem
from firstchair.chat.messages import Tool, ToolCall
from firstchair.core.errors import DataError
from firstchair.core.jsontext import dumps
from firstchair.testing.scorer_table import FALSE_FAILURES, FALSE_PASSES, Case
from firstchair.traces.decisions import Accepted, DecisionPoint


def call(name: str, text: str) -> ToolCall:
    return ToolCall(id="c", name=name, arguments=text)


def act(*calls: ToolCall, text: str = "") -> Action:
    return Action(kind="tool_call" if calls else "final_reply", calls=calls, text=text)


def decision(gold: Action, **fields) -> DecisionPoint:
    return DecisionPoint(
        dp_id="s:0", session_id="s", turn=0, seq=0, context_end=1, observed=gold, gold=gold, **fields
    )


def run(case: Case):
    tool = Tool(
        name="t", parameters={"type": "object", "properties": case.properties, "required": list(case.required)}
    )
    point = decision(act(*(call(*row) for row in case.gold), text="Done."))
    reply = act(*(call(*row) for row in case.made), text="All finished.")
    return score(point, reply, Matchers.of({"t": case.matchers}, **case.options), (tool,))


@pytest.mark.parametrize("case", FALSE_FAILURES + FALSE_PASSES, ids=lambda case: case.name)
def test_the_scorer_table_holds(case):
    scored = run(case)
    assert (scored.lenient, scored.rule, scored.undecided) == (case.verdict, case.rule, case.undecided)
    if scored.lenient != Verdict.PASS:
        assert scored.strict == scored.lenient


@pytest.mark.parametrize("case", FALSE_FAILURES + FALSE_PASSES, ids=lambda case: case.name)
def test_gold_against_itself_is_a_strict_pass(case):
    assert run(case._replace(made=case.gold, rule="")).strict == Verdict.PASS


ARGUMENTS = st.dictionaries(
    st.text(max_size=4),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)


@given(ARGUMENTS, ARGUMENTS)
def test_a_strict_pass_is_always_a_lenient_pass_and_the_levels_never_cross(gold, made):
    scored = score(decision(act(call("t", dumps(gold)))), act(call("t", dumps(made))), {}, ())
    if scored.strict == Verdict.PASS:
        assert scored.lenient == Verdict.PASS
    if scored.lenient != Verdict.PASS:
        assert scored.fields or scored.rule in ("action", "tool")


def test_no_action_is_an_error_and_not_a_model_failure():
    scored = score(decision(act()), None, {}, ())
    assert (scored.strict, scored.lenient, scored.rule) == (Verdict.ERROR, Verdict.ERROR, "no_action")


@pytest.mark.parametrize("kind", ["malformed_json", "unclosed_call", "truncated"])
def test_an_unreadable_reply_is_malformed_even_where_stopping_is_right(kind):
    reply = ParsedReply(text="<tool_call>{", problems=(Problem(kind=kind, message="m"),))
    assert score(decision(act()), reply, {}, ()).lenient == Verdict.MALFORMED


@pytest.mark.parametrize("kind", ["unknown_tool", "duplicate_call", "text_after_call", "unclosed_thinking"])
def test_a_readable_reply_with_a_blemish_is_scored(kind):
    reply = ParsedReply(calls=(call("t", "{}"),), problems=(Problem(kind=kind, message="m"),))
    assert score(decision(act(call("t", "{}"))), reply, {}, ()).strict == Verdict.PASS


def test_gold_that_breaks_its_own_schema_still_passes_against_itself():
    violation = Problem(kind="schema_violation", message="m", path="n")
    reply = ParsedReply(calls=(call("t", '{"n": "x"}'),), problems=(violation,))
    assert score(decision(act(call("t", '{"n":"x"}'))), reply, {}, ()).strict == Verdict.PASS
    other = msgspec.structs.replace(reply, calls=(call("t", '{"n": "y"}'),))
    scored = score(decision(act(call("t", '{"n":"x"}'))), other, {}, ())
    assert (scored.lenient, scored.field) == (Verdict.MALFORMED, "n")


def test_a_known_bad_call_is_named_and_gold_wins_over_it():
    bad, gold = act(call("t", '{"a": 1}')), act(call("t", '{"a": 2}'))
    point = decision(gold, known_bad=(bad,))
    assert score(point, act(call("t", '{"a": 1.0}')), {}, ()).lenient == Verdict.KNOWN_BAD_REPEATED
    assert score(point, gold, {}, ()).lenient == Verdict.PASS
    assert score(point, bad, {"t": {"a": "ignore"}}, ()).lenient == Verdict.KNOWN_BAD_REPEATED


def test_a_recorded_early_stop_is_repeated_by_stopping():
    point = decision(act(call("t", "{}")), known_bad=(act(text="I cannot."),))
    assert score(point, act(text="Sorry."), {}, ()).lenient == Verdict.KNOWN_BAD_REPEATED


def test_an_untrue_reply_is_repeated_only_in_its_own_words():
    point = decision(act(text="Not sent."), known_bad=(act(text="Sent it."),))
    assert score(point, act(text="Sent  it."), {}, ()).lenient == Verdict.KNOWN_BAD_REPEATED
    assert score(point, act(text="I could not send it."), {}, ()).lenient == Verdict.PASS


def test_an_accepted_alternative_passes_leniently_and_says_which():
    point = decision(
        act(call("t", '{"q": "paris weather"}')),
        accept=(
            Accepted(action=act(call("u", "{}"))),
            Accepted(matchers={"q": "fuzzy>=0.8"}),
            Accepted(action=act(text="Which city?")),
        ),
    )
    fuzzy = score(point, act(call("t", '{"q": "Paris weather?"}')), {}, ())
    assert (fuzzy.strict, fuzzy.lenient, fuzzy.rule, fuzzy.alternative) == ("wrong_args", "pass", "accept", 1)
    other = score(point, act(call("u", "{}")), {}, ())
    assert (other.strict, other.lenient, other.alternative) == ("wrong_tool", "pass", 0)
    stop = score(point, act(text="What city?"), {}, ())
    assert (stop.strict, stop.lenient, stop.alternative) == ("premature_stop", "pass", 2)


def test_a_loosened_field_does_not_loosen_it_for_other_decisions():
    gold = act(call("t", '{"q": "a"}'))
    scorer = Scorer((), Matchers.of({"t": {"r": "ws"}}))
    loose = decision(gold, accept=(Accepted(matchers={"q": "ignore"}),))
    made = act(call("t", '{"q": "b"}'))
    assert scorer.score(loose, made).lenient == Verdict.PASS
    assert scorer.score(decision(gold), made).lenient == Verdict.WRONG_ARGS


def test_one_definite_difference_outweighs_an_undecided_one():
    rules = {"t": {"q": "judge"}}
    point = decision(act(call("t", '{"q": "a", "n": 1}')))
    scored = score(point, act(call("t", '{"q": "b", "n": 2}')), rules, ())
    assert (scored.rule, scored.field, scored.fields, scored.undecided) == ("value", "n", ("q", "n"), False)


def test_parallel_calls_are_paired_so_that_least_is_wrong():
    gold = act(call("t", '{"a": 1, "b": 1}'), call("t", '{"a": 2, "b": 2}'))
    made = act(call("t", '{"a": 2, "b": 2}'), call("t", '{"a": 1, "b": 7}'))
    scored = score(decision(gold), made, {}, ())
    assert (scored.lenient, scored.fields) == (Verdict.WRONG_ARGS, ("b",))


def test_extra_harmless_calls_are_counted():
    rules = Matchers.of({}, read_only=["look"], extra_read_only=2)
    scored = score(decision(act(call("t", "{}"))), act(call("t", "{}"), call("look", "{}")), rules, ())
    assert (scored.lenient, scored.rule, scored.extra_calls) == (Verdict.PASS, "extra_read_only", 1)


def test_unreadable_gold_is_an_error_that_names_the_decision():
    with pytest.raises(DataError, match="s:0"):
        score(decision(act(call("t", "{"))), act(call("t", "{}")), {}, ())


def test_a_broken_tool_schema_condemns_nobody():
    tool = Tool(name="t", parameters={"type": "no such type"})
    assert (
        score(decision(act(call("t", '{"a": 1}'))), act(call("t", '{"a": 2}')), {}, (tool,)).lenient == "wrong_args"
    )


def test_a_long_field_of_schema_references_and_alternatives_is_followed():
    tool = Tool(
        name="t",
        parameters={
            "type": "object",
            "$defs": {"leg": {"type": "object", "properties": {"seats": {"type": "integer", "default": 1}}}},
            "properties": {
                "legs": {"type": "array", "items": {"$ref": "#/$defs/leg"}},
                "note": {"anyOf": [{"type": "string", "default": "none"}, {"type": "null"}]},
            },
        },
    )
    point = decision(act(call("t", '{"legs": [{"to": "Oslo"}]}')))
    made = act(call("t", '{"legs": [{"to": "Oslo", "seats": 1.0}], "note": "none"}'))
    assert score(point, made, {}, (tool,)).lenient == Verdict.PASS
