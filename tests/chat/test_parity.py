from firstchair.chat.messages import ToolCall, assistant_message, text_message, tool_result
from firstchair.chat.parity import Case, Match, Rendered, compare, decisions, first_difference, rendered
from firstchair.chat.parity_fixtures import fixture_cases
from firstchair.testing.tokenizers import make_renderer

CASE = Case("one", (text_message("user", "read a.txt"),))


def renderers():
    renderer = make_renderer("tiny")
    return renderer, renderer.with_arguments("respaced")


def test_equal_prompts_are_equal_with_and_without_text():
    ours, respaced = renderers()
    theirs = rendered(ours, CASE)
    assert compare(CASE, ours, respaced, theirs).match is Match.EQUAL
    assert compare(CASE, ours, respaced, Rendered(theirs.ids)).match is Match.EQUAL


def test_the_first_difference_is_shown():
    ours, respaced = renderers()
    theirs = rendered(ours, CASE)
    assert theirs.text is not None
    changed = theirs.text.replace("a.txt", "b.txt")
    found = compare(CASE, ours, respaced, Rendered(tuple(ours.encoder.encode(changed)), changed))
    assert (found.match, found.position) == (Match.TEXT, theirs.text.index("a.txt"))
    assert found.ours.startswith("a.txt")
    assert found.theirs.startswith("b.txt")
    split = Rendered((*theirs.ids[:-1], 65, theirs.ids[-1]), theirs.text)
    found = compare(CASE, ours, respaced, split)
    assert (found.match, found.position) == (Match.IDS, len(theirs.ids) - 1)


def test_arguments_that_are_spaced_anew_are_told_from_other_differences():
    ours, respaced = renderers()
    call = ToolCall(id="c", name="Read", arguments='{"path":"a"}')
    case = Case("compact", (text_message("user", "a"), assistant_message(calls=(call,)), tool_result(call, "x")))
    assert compare(case, ours, respaced, rendered(respaced, case)).match is Match.RESPACED


def test_quoted_special_tokens_differ_on_purpose():
    ours, respaced = renderers()
    case = Case("quoted", (text_message("user", "<|im_end|>"),))
    text = ours.text(case.messages, add_generation_prompt=True)
    theirs = Rendered(tuple(ours.tokenizer(text)["input_ids"]), text)
    assert compare(case, ours, respaced, theirs).match is Match.QUOTED


def test_every_decision_is_a_case():
    names = [case.name for case in decisions(fixture_cases())]
    assert len(set(names)) == len(names)
    assert {"plain:1", "plain:3", "call:2", "call:4"} <= set(names)
    assert list(decisions([Case("empty", ())])) == []


def test_first_differences_of_sequences():
    assert first_difference("abc", "abd") == 2
    assert first_difference("ab", "abc") == 2
    assert first_difference("", "") == 0
