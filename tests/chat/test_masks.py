"""Masks against two oracles that know nothing of the renderer: text written by hand, and character offsets."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstchair.chat.messages import Message, Tool, ToolCall, assistant_message, text_message, tool_result
from firstchair.testing.tokenizers import make_renderer

TOOLS = (Tool(name="Read", parameters={"type": "object", "properties": {"path": {"type": "string"}}}),)
END = {"tiny": "<|im_end|>", "llama3": "<|eot_id|>", "gemma": "<end_of_turn>", "qwen3": "<|im_end|>"}
HEADER = {
    "tiny": "<|im_start|>assistant\n",
    "qwen3": "<|im_start|>assistant\n",
    "llama3": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "gemma": "<start_of_turn>model\n",
}
FAMILIES = sorted(HEADER)
QUOTES = [*END.values(), *HEADER.values(), "<|im_start|>", "<|im_start|>user\n", "<bos>", "<|begin_of_text|>"]

PLAIN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=12)
TEXT = PLAIN | st.sampled_from(["", "\n", "\n\nx", " x", "é漢🙂", "</think>", "x\n"])
QUOTING = st.lists(TEXT | st.sampled_from(QUOTES), max_size=4).map("".join)


@st.composite
def sessions(draw: st.DrawFn, text: st.SearchStrategy[str]) -> tuple[Message, ...]:
    messages = [text_message("system", draw(text)) for _ in range(draw(st.integers(0, 2)))]
    for turn in range(draw(st.integers(1, 3))):
        messages.append(text_message("user", draw(text)))
        for step in range(draw(st.integers(0, 2))):
            calls = tuple(
                ToolCall.of(f"c{turn}{step}{n}", "Read", {"path": draw(text)}) for n in range(draw(st.integers(1, 2)))
            )
            messages.append(assistant_message(draw(text), thinking=draw(text), calls=calls))
            messages.extend(tool_result(call, draw(text), is_error=draw(st.booleans())) for call in calls)
        messages.append(assistant_message(draw(text), thinking=draw(text)))
    return tuple(messages)


def written(family: str, message: Message) -> str:
    """What a model of the family writes for ``message``, end token included."""
    if family == "tiny":
        thinking = f"<think>{message.thinking}</think>" if message.thinking else ""
        calls = "".join(
            f'<tool_call>{{"name": "{c.name}", "arguments": {c.arguments}}}</tool_call>' for c in message.tool_calls
        )
        return thinking + message.text + calls + END[family]
    thinking = f"<think>\n{message.thinking}\n</think>\n\n" if message.thinking else ""
    if family == "llama3":
        calls = "; ".join(f'{{"name": "{c.name}", "parameters": {c.arguments}}}' for c in message.tool_calls)
    else:
        calls = "\n".join(
            f'<tool_call>\n{{"name": "{c.name}", "arguments": {c.arguments}}}\n</tool_call>'
            for c in message.tool_calls
        )
    return thinking + message.text + ("\n" if message.text and calls else "") + calls + END[family]


@pytest.mark.parametrize("family", ["tiny", "llama3", "gemma"])
@settings(max_examples=40)
@given(session=sessions(QUOTING))
def test_scored_text_is_what_the_assistant_wrote_and_its_end_token(family, session):
    renderer = make_renderer(family)
    conversation = renderer.conversation(session, TOOLS)
    conversation.validate(vocab_size=renderer.vocab_size)
    spans = conversation.assistant_spans()
    assert [renderer.encoder.decode(conversation.ids[s.start : s.end]) for s in spans] == [
        written(family, m) for m in session if m.role == "assistant"
    ]
    assert sum(conversation.loss_mask) == sum(s.end - s.start for s in spans)
    assert renderer.encoder.decode(conversation.ids) == renderer.text(session, TOOLS)
    for span in spans:
        assert renderer.prompt_ids(session[: span.message_index], TOOLS) == conversation.ids[: span.start]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40)
@given(session=sessions(QUOTING))
def test_messages_never_bring_control_tokens_into_the_stream(family, session):
    renderer = make_renderer(family)
    bare = tuple(
        Message(role=m.role, content=text_message("user", "x" if m.text else "").content, tool_call_id=m.tool_call_id)
        for m in session
    )
    controls = set(renderer.encoder.specials.values())
    rows = renderer.segments(session, TOOLS)
    for row in rows:
        upto = max(span.message_index for span in row.assistant_spans())
        plain = renderer._build(
            bare[: upto + 1], renderer._render(bare[: upto + 1], TOOLS, False), [False] * (upto + 1)
        )
        # The same structure as a conversation of harmless words, token for control token.
        assert [i for i in row.ids if i in controls] == [i for i in plain.ids if i in controls]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40)
@given(session=sessions(PLAIN.map(lambda text: "w" + text)))
def test_the_mask_is_where_character_offsets_put_it(family, session):
    renderer = make_renderer(family)
    last = len(session) - 1
    row = renderer.segments(session, TOOLS)[-1]
    text = renderer.text(session, TOOLS)
    encoded = renderer.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    assert encoded["input_ids"] == row.ids
    pattern = re.escape(HEADER[family]) + r"((?s:.)*?" + re.escape(END[family]) + ")"
    trained = [message.start(1) for message in re.finditer(pattern, text)]
    found = [(match.start(1), match.end(1)) for match in re.finditer(pattern, text)]
    kept = {s.message_index for s in row.assistant_spans() if row.loss_mask[s.start]}
    own = [index for index, message in enumerate(session) if message.role == "assistant"]
    ranges = [span for span, index in zip(found, own, strict=True) if index in kept]
    assert last in kept
    assert trained
    expected = [any(a <= start and end <= b for a, b in ranges) for start, end in encoded["offset_mapping"]]
    assert row.loss_mask == expected


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40)
@given(session=sessions(QUOTING))
def test_every_trained_turn_has_the_prompt_of_serving_in_exactly_one_row(family, session):
    renderer = make_renderer(family)
    rows = renderer.segments(session, TOOLS)
    seen = []
    for row in rows:
        row.validate(vocab_size=renderer.vocab_size)
        for span in row.assistant_spans():
            if row.loss_mask[span.end - 1]:
                seen.append(span.message_index)
                assert renderer.prompt_ids(session[: span.message_index], TOOLS) == row.ids[: span.start]
    assert seen == [index for index, message in enumerate(session) if message.role == "assistant"]
