import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstchair.chat.formats import FORMATS, read_message, tool_call_format
from firstchair.chat.formats.native import Native
from firstchair.chat.messages import Tool, ToolCall, assistant_message
from firstchair.core.errors import ConfigError, DataError

TOOLS = (
    Tool(
        name="Read",
        parameters={
            "type": "object",
            "properties": {"path": {"type": "string"}, "lines": {"type": "array", "items": {"type": "integer"}}},
            "required": ["path"],
        },
    ),
    Tool(name="web_search", parameters={"type": "object", "properties": {"query": {"type": "string"}}}),
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=5,
)
CALLS = st.lists(
    st.tuples(st.sampled_from(["Read", "web_search"]), st.dictionaries(TEXT, VALUES, max_size=3)), max_size=3
)
TEXT_FORMATS = ["hermes", "qwen_xml", "llama_json", "mistral"]


def kinds(reply):
    return [problem.kind for problem in reply.problems]


@pytest.mark.parametrize("name", ["hermes", "llama_json", "mistral", "native"])
@given(calls=CALLS)
def test_rendered_calls_are_read_back_byte_for_byte(name, calls):
    made = tuple(ToolCall.of(f"call_{i}", tool, arguments) for i, (tool, arguments) in enumerate(calls))
    reply = FORMATS[name].parse(FORMATS[name].render(made))
    assert [(c.name, c.arguments) for c in reply.calls] == [(c.name, c.arguments) for c in made]
    assert set(kinds(reply)) <= {"duplicate_call"}
    assert reply.text == ""


XML_TEXT = TEXT.filter(lambda text: "<" not in text and ">" not in text)
XML_VALUES = st.integers() | st.booleans() | st.lists(st.integers(), max_size=3) | XML_TEXT


@given(st.dictionaries(XML_TEXT.filter(lambda key: key and "\n" not in key), XML_VALUES, max_size=3))
def test_xml_calls_are_read_back_with_the_types_of_the_schema(arguments):
    types = {str: "string", bool: "boolean", int: "integer", list: "array"}
    properties = {key: {"type": types[type(value)]} for key, value in arguments.items()}
    tools = (Tool(name="f", parameters={"type": "object", "properties": properties}),)
    made = ToolCall.of("call_0", "f", arguments)
    xml = FORMATS["qwen_xml"]
    reply = xml.parse(xml.render((made,)), tools)
    assert reply.calls == (made,)
    assert reply.problems == ()


def test_an_xml_value_may_quote_tags_and_a_malformed_call_has_no_xml_form():
    xml = FORMATS["qwen_xml"]
    made = ToolCall.of("call_0", "Read", {"path": "a</parameter>b</function>\n<x>"})
    assert xml.parse(xml.render((made,)), TOOLS).calls == (made,)
    with pytest.raises(DataError, match=r"calls\[0\].arguments"):
        xml.render((ToolCall(id="c", name="f", arguments="{"),))


@pytest.mark.parametrize("name", TEXT_FORMATS)
@given(
    text=st.text(max_size=60)
    | st.lists(
        st.sampled_from(
            [
                "<tool_call>",
                "</tool_call>",
                "<think>",
                "</think>",
                "{",
                "}",
                '"name"',
                ": ",
                '"arguments"',
                '"Read"',
                ", ",
                "[",
                "]",
                "[TOOL_CALLS]",
                "<function=",
                ">",
                "<parameter=path>",
                "</parameter>",
                "</function>",
                "\\boxed{Read: x}",
                "```json\n",
                "```",
                "\n",
                "1e999",
                "NaN",
                "\\ud800",
                '"parameters"',
                "[ARGS]",
            ]
        ),
        max_size=20,
    ).map("".join)
)
def test_reading_never_raises_and_gives_what_a_record_can_hold(name, text):
    for salvage in (False, True):
        reply = FORMATS[name].parse(text, TOOLS, salvage)
        assert reply.salvaged in (False, salvage)
        assert len({call.id for call in reply.calls}) == len(reply.calls)
        for problem in reply.problems:
            assert problem.call is None or 0 <= problem.call < len(reply.calls)


@pytest.mark.parametrize("name", TEXT_FORMATS)
def test_plain_text_is_a_reply_without_calls_or_problems(name):
    for text in ["Done.", "", "see {this} and [that]", '{"answer": 42}', "a < b", '{"name": "Bob", "age": 3}']:
        reply = FORMATS[name].parse(text, TOOLS)
        assert (reply.text, reply.calls, reply.problems) == (text, (), ())
        assert reply.action().kind == "final_reply"


@pytest.mark.parametrize("name", TEXT_FORMATS)
def test_thinking_and_text_stand_apart_from_the_call(name):
    call = ToolCall.of("call_0", "Read", {"path": "a"})
    syntax = FORMATS[name]
    reply = syntax.parse(f"<think>\nhm <tool_call> no\n</think>\n\nLet me look.\n{syntax.render((call,))}", TOOLS)
    assert (reply.thinking, reply.text, reply.calls, reply.problems) == (
        "hm <tool_call> no",
        "Let me look.",
        (call,),
        (),
    )


@pytest.mark.parametrize("name", TEXT_FORMATS)
def test_thinking_that_never_ends_is_no_action(name):
    reply = FORMATS[name].parse("<think>hm <tool_call>{}", TOOLS)
    assert kinds(reply) == ["unclosed_thinking"]
    assert reply.malformed
    assert (reply.calls, reply.text) == ((), "")


HERMES_CASES = [
    ('<tool_call>{"name": "Read", "arguments": {"path": 3}}</tool_call>', ["schema_violation"], True),
    ('<tool_call>{"name": "Read", "arguments": {}}</tool_call>', ["schema_violation"], True),
    ('<tool_call>{"name": "Read", "arguments": "{}"}</tool_call>', ["schema_violation"], True),
    ('<tool_call>{"name": "Fly", "arguments": {}}</tool_call>', ["unknown_tool"], False),
    ('<tool_call>{"name": "Read", "arguments": {"path": "a"}</tool_call>', ["malformed_json"], True),
    ('<tool_call>{"name": "Read", "arguments": {"path": "a", "path": "b"}}</tool_call>', ["malformed_json"], True),
    ('<tool_call>{"name": "Read", "name": "Read", "arguments": {}}</tool_call>', ["malformed_json"], True),
    ('<tool_call>{"name": "Read", "arguments": {"path": NaN}}</tool_call>', ["malformed_json"], True),
    ('<tool_call>{"name": "Read", "arguments": {"path": "\\ud800"}}</tool_call>', ["malformed_json"], True),
    ('<tool_call>{"arguments": {"path": "a"}}</tool_call>', ["malformed_json"], True),
    ('<tool_call>{"name": "Read", "arguments": {}, "input": {}}</tool_call>', ["malformed_json"], True),
    ('<tool_call>{"name": "Read", "arguments": {"path": "a"}, "x": 1}</tool_call>', ["malformed_json"], True),
    ("<tool_call>read a</tool_call>", ["malformed_json"], True),
    ('<tool_call>{"name": "Read", "arguments": {"path": "a"}} x</tool_call>', ["malformed_json"], True),
    ('<tool_call>{"name": "Read", "arguments": {"path": "a"}}', ["unclosed_call"], True),
    ('<tool_call>{"name": "Read", "arguments": {"path": "a', ["unclosed_call"], True),
    ('<tool_call>{"name": "Read", "arguments": {"path": "a"}}</tool_call> done', ["text_after_call"], False),
    ('<tool_call>{"name": "Read", "arguments": {"path": "a"}}</tool_call>' * 2, ["duplicate_call"], False),
]


@pytest.mark.parametrize(("text", "expected", "malformed"), HERMES_CASES)
def test_every_fault_has_its_kind(text, expected, malformed):
    reply = FORMATS["hermes"].parse(text, TOOLS)
    assert kinds(reply) == expected
    assert reply.malformed is malformed


def test_a_malformed_call_keeps_its_raw_text_and_can_be_written_again():
    raw = '{"path": "a", }'
    reply = FORMATS["hermes"].parse(f'<tool_call>\n{{"name": "Read", "arguments": {raw}}}\n</tool_call>', TOOLS)
    (call,) = reply.calls
    assert (call.name, call.arguments, call.parsed()) == ("Read", raw, None)
    assert reply.malformed
    assert raw in FORMATS["hermes"].render(reply.calls)


def test_a_schema_fault_names_its_json_path():
    text = '<tool_call>{"name": "Read", "arguments": {"path": "a", "lines": [1, "x"]}}</tool_call>'
    (problem,) = FORMATS["hermes"].parse(text, TOOLS).problems
    assert (problem.kind, problem.path, problem.call) == ("schema_violation", "$.lines[1]", 0)


def test_a_string_that_quotes_the_closing_tag_does_not_close_the_call():
    call = ToolCall.of("call_0", "Read", {"path": "a </tool_call> <tool_call> b"})
    hermes = FORMATS["hermes"]
    assert hermes.parse(hermes.render((call, call)), TOOLS).calls[0] == call


def test_numbers_and_bytes_of_arguments_are_kept():
    raw = '{"path":"a",  "n": 1.10, "big": 123456789012345678901234567890}'
    reply = FORMATS["hermes"].parse(f'<tool_call>{{"name": "Read", "arguments": {raw}}}</tool_call>')
    assert reply.calls[0].arguments == raw


@pytest.mark.parametrize("key", ["arguments", "input", "parameters"])
def test_other_words_for_arguments_and_another_order_are_read(key):
    text = f'<tool_call>{{"{key}": {{"path": "a"}}, "name": "Read"}}</tool_call>'
    reply = FORMATS["hermes"].parse(text, TOOLS)
    assert (reply.calls[0].arguments, reply.problems) == ('{"path": "a"}', ())


def test_100_levels_and_a_huge_number_are_refused_not_fatal():
    for bad in ("[" * 100 + "]" * 100, "[" * 100_000, "1" * 5000):
        reply = FORMATS["hermes"].parse(f'<tool_call>{{"name": "Read", "arguments": {{"path": {bad}}}}}</tool_call>')
        assert kinds(reply) == ["malformed_json"]


def test_ids_can_be_told_apart_across_steps():
    text = '<tool_call>{"name": "Read", "arguments": {"path": "a"}}</tool_call>'
    assert FORMATS["hermes"].parse(text, id_prefix="call_7_").calls[0].id == "call_7_0"


def test_newer_mistral_calls_and_own_ids_are_read():
    mistral = FORMATS["mistral"]
    reply = mistral.parse('[TOOL_CALLS]Read[CALL_ID]abcdefghi[ARGS]{"path": "a"}[TOOL_CALLS]web_search{"query": "q"}')
    assert [(c.id, c.name, c.arguments) for c in reply.calls] == [
        ("abcdefghi", "Read", '{"path": "a"}'),
        ("call_1", "web_search", '{"query": "q"}'),
    ]
    own = ToolCall.of("abcdefghi", "Read", {"path": "a"})
    assert mistral.parse(mistral.render((own,))).calls == (own,)
    assert kinds(mistral.parse('[TOOL_CALLS][{"name": "Read", "arguments": {}}')) == ["unclosed_call"]
    assert kinds(mistral.parse("[TOOL_CALLS]")) == ["malformed_json"]
    assert mistral.render(()) == ""


@pytest.mark.timeout(5)
def test_a_reply_of_nothing_but_line_ends_is_read_once():
    call = '{"name": "Read", "parameters": {"path": "a"}}'
    for text in ("x" + "\n" * 40_000 + "y", "x \n" * 10_000 + call, " \n" * 20_000 + call):
        assert len(FORMATS["llama_json"].parse(text, TOOLS).calls) == text.count("{") // 2
    assert FORMATS["llama_json"].parse("x \n\n" + call, TOOLS).text == "x "


def test_llama_calls_with_a_python_tag_or_after_text_are_read():
    llama = FORMATS["llama_json"]
    for text in (
        '<|python_tag|>{"name": "Read", "parameters": {"path": "a"}}',
        'I look.\n{"name": "Read", "parameters": {"path": "a"}}',
    ):
        assert llama.parse(text, TOOLS).calls[0].arguments == '{"path": "a"}'
    assert kinds(llama.parse('{"name": "Read", "parameters": {"path": "a}', TOOLS)) == ["malformed_json"]


SALVAGE = [
    ("\\boxed{web_search: cheap flights}", "web_search", {"query": "cheap flights"}),
    ('```json\n{"name": "Read", "arguments": {"path": "a"}}\n```', "Read", {"path": "a"}),
    ('<tool_call>{"name": "Read", "arguments": {"path": "a"}}</tool_call>' * 2, "Read", {"path": "a"}),
]


@pytest.mark.parametrize(("text", "name", "arguments"), SALVAGE)
def test_wrong_habits_are_read_only_on_request_and_then_marked(text, name, arguments):
    plain = FORMATS["hermes"].parse(text, TOOLS)
    assert not plain.salvaged
    assert len(plain.calls) != 1
    saved = FORMATS["hermes"].parse(text, TOOLS, salvage=True)
    assert saved.salvaged
    assert [(c.id, c.name, c.parsed()) for c in saved.calls] == [("call_0", name, arguments)]
    assert saved.problems == ()


def test_what_cannot_be_salvaged_stays_as_it_is():
    for text in ("\\boxed{42}", "\\boxed{Fly: away}", '```json\n{"a": 1}\n```', "```\nprint()\n```"):
        reply = FORMATS["hermes"].parse(text, TOOLS, salvage=True)
        assert (reply.text, reply.calls, reply.salvaged) == (text, (), False)


def test_native_messages_are_checked_like_text():
    good = ToolCall.of("c1", "Read", {"path": "a"})
    bad = ToolCall(id="c2", name="Read", arguments='{"path": ')
    reply = read_message(assistant_message("hi", thinking="hm", calls=(good, bad)), TOOLS)
    assert (reply.text, reply.thinking, reply.calls) == ("hi", "hm", (good, bad))
    assert kinds(reply) == ["malformed_json"]
    text = json.dumps({"content": "hi", "tool_calls": [{"id": "x"}]})
    assert kinds(Native().parse(text)) == ["malformed_json"]
    assert Native().parse('{"a": 1}').text == '{"a": 1}'


def test_an_unknown_format_is_named():
    with pytest.raises(ConfigError, match="hermes"):
        tool_call_format("morse")
