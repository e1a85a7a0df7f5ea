"""Random conversations as harnesses send them, for property tests (needs ``hypothesis``).

Every field that a wire has can occur: null, empty and list content, names, refusals, cache marks, signatures,
images, errors, parallel calls, text between calls, unknown blocks.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["[tool_error] x", "\\[tool_error] ", "[tool_error] ", "", " ", "<tool_call>", "\u2028", "é漢🙂", "a\nb\n"]
)
SOME_TEXT = TEXT.filter(bool)
NAMES = st.sampled_from(["Read", "web_search", "send_message"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2), max_leaves=4
)
ARGUMENTS = st.dictionaries(TEXT, VALUES, max_size=3)
UNKNOWN = st.dictionaries(st.sampled_from(["x_new", "zz"]), VALUES, max_size=1)
CACHE: st.SearchStrategy[dict[str, Any]] = st.just({}) | st.just(
    {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
)
DATA = st.sampled_from(["iVBORw0KGgo=", "", "AAAA"])


@st.composite
def _openai_parts(draw: st.DrawFn, *, images: bool, min_size: int = 0) -> list[dict[str, Any]]:
    text = st.builds(lambda text, extra: {"type": "text", "text": text, **extra}, TEXT, UNKNOWN)
    kinds = text
    if images:
        url = st.sampled_from(["https://x/y.png", "data:image/png;base64,AAAA"])
        detail: st.SearchStrategy[dict[str, Any]] = st.just({}) | st.just({"detail": "high"})
        image = st.builds(lambda u, d: {"type": "image_url", "image_url": {"url": u, **d}}, url, detail)
        audio = st.just({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}})
        kinds = text | image | audio
    return draw(st.lists(kinds, min_size=min_size, max_size=3))


def _openai_call(call_id: str) -> st.SearchStrategy[dict[str, Any]]:
    from firstchair.core.jsontext import dumps

    arguments = ARGUMENTS.map(dumps) | st.sampled_from(["", '{"a":1}', '{"a": ', "[1]", '{"a": 1, "a": 2}', "{} "])
    plain = st.builds(
        lambda name, text, extra: {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": text},
            **extra,
        },
        NAMES,
        arguments,
        UNKNOWN,
    )
    custom = st.builds(
        lambda name, text: {"id": call_id, "type": "custom", "custom": {"name": name, "input": text}}, NAMES, TEXT
    )
    return plain | custom


@st.composite
def openai_conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Messages of a Chat Completions request; every result answers a call, some calls have none."""
    rows: list[dict[str, Any]] = []
    for turn in range(draw(st.integers(0, 4))):
        role = draw(st.sampled_from(["system", "developer", "user", "assistant", "assistant"]))
        row: dict[str, Any] = {"role": role, **draw(UNKNOWN)}
        if draw(st.booleans()):
            row["name"] = draw(st.none() | SOME_TEXT)
        if role != "assistant":
            row["content"] = draw(TEXT | _openai_parts(images=role == "user"))
            rows.append(row)
            continue
        _openai_assistant(draw, row, turn)
        rows.append(row)
        for call in draw(st.permutations(row.get("tool_calls") or [])):
            if draw(st.integers(0, 5)):
                rows.append(_openai_result(draw, call["id"]))
    return rows


def _openai_assistant(draw: st.DrawFn, row: dict[str, Any], turn: int) -> None:
    content = draw(TEXT | st.none() | st.just("absent") | _openai_parts(images=False))
    if content != "absent":
        row["content"] = content
    for key in ("reasoning_content", "reasoning"):
        if draw(st.integers(0, 3)) == 0:
            row[key] = draw(TEXT | st.none() | st.just("hm"))
    for key in ("refusal", "audio"):
        if draw(st.integers(0, 3)) == 0:
            row[key] = draw(st.none() | TEXT)
    count = draw(st.integers(0, 3))
    if count:
        row["tool_calls"] = [draw(_openai_call(f"call_{turn}_{position}")) for position in range(count)]
    elif draw(st.integers(0, 3)) == 0:
        row["tool_calls"] = draw(st.none() | st.just([]))


def _openai_result(draw: st.DrawFn, call_id: str) -> dict[str, Any]:
    result: dict[str, Any] = {"role": "tool", "tool_call_id": call_id}
    result["content"] = draw(TEXT | st.none() | _openai_parts(images=True))
    if draw(st.booleans()):
        result["name"] = draw(NAMES)
    return result


def _anthropic_block(*kinds: str) -> st.SearchStrategy[dict[str, Any]]:
    text = st.builds(lambda text, cache: {"type": "text", "text": text, **cache}, TEXT, CACHE)
    source = st.one_of(
        st.builds(lambda data: {"type": "base64", "media_type": "image/png", "data": data}, DATA),
        st.just({"type": "url", "url": "https://x/y.png"}),
        st.just({"type": "file", "file_id": "file_1"}),
    )
    table: dict[str, st.SearchStrategy[dict[str, Any]]] = {
        "text": text,
        "image": st.builds(lambda source, cache: {"type": "image", "source": source, **cache}, source, CACHE),
        "thinking": st.builds(
            lambda text, signature: {"type": "thinking", "thinking": text, "signature": signature}, TEXT, TEXT
        ),
        "redacted": st.just({"type": "redacted_thinking", "data": "opaque"}),
        "unknown": st.just({"type": "document", "source": {"type": "text", "data": "x"}, "title": None}),
    }
    return st.one_of(*(table[kind] for kind in kinds))


@st.composite
def anthropic_conversations(draw: st.DrawFn) -> tuple[Any, list[dict[str, Any]]]:
    """``(system, messages)`` of a Messages request as the API takes it: results first, every call answered."""
    system = draw(st.none() | TEXT | st.lists(_anthropic_block("text"), max_size=3))
    rows: list[dict[str, Any]] = []
    open_ids: list[str] = []
    for turn in range(draw(st.integers(0, 4))):
        if open_ids:
            blocks = [draw(_anthropic_result(call_id)) for call_id in draw(st.permutations(open_ids))]
            open_ids = []
            if draw(st.booleans()):
                blocks += draw(st.lists(_anthropic_block("text", "image", "unknown"), max_size=2))
            rows.append({"role": "user", "content": blocks})
            continue
        role = draw(st.sampled_from(["user", "assistant", "assistant", "system"]))
        if role != "assistant":
            kinds = ("text",) if role == "system" else ("text", "image", "unknown")
            content = draw(TEXT | st.lists(_anthropic_block(*kinds), max_size=3))
            rows.append({"role": role, "content": content})
            continue
        blocks = draw(st.lists(_anthropic_block("text", "thinking", "redacted", "unknown"), max_size=3))
        for position in range(draw(st.integers(0, 3))):
            call_id = f"toolu_{turn}_{position}"
            block = {"type": "tool_use", "id": call_id, "name": draw(NAMES), "input": draw(ARGUMENTS), **draw(CACHE)}
            # Between text blocks and after them.
            blocks.insert(draw(st.integers(0, len(blocks))), block)
            open_ids.append(call_id)
        rows.append({"role": "assistant", "content": draw(TEXT) if not blocks and draw(st.booleans()) else blocks})
    return system, rows


@st.composite
def _anthropic_result(draw: st.DrawFn, call_id: str) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id, **draw(CACHE)}
    content = draw(TEXT | st.none() | st.just("absent") | st.lists(_anthropic_block("text", "image"), max_size=3))
    if content != "absent":
        block["content"] = content
    if draw(st.booleans()):
        block["is_error"] = draw(st.booleans())
    return block


@st.composite
def common_conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """OpenAI messages of the subset that both wires carry whole: a round trip through the other is the identity."""
    rows: list[dict[str, Any]] = [
        {"role": "system", "content": draw(SOME_TEXT)} for _ in range(draw(st.integers(0, 1)))
    ]
    for turn in range(draw(st.integers(0, 3))):
        rows.append({"role": "user", "content": draw(SOME_TEXT | _common_parts())})
        ids = [f"call_{turn}_{position}" for position in range(draw(st.integers(0, 2)))]
        row: dict[str, Any] = {"role": "assistant", "content": draw(SOME_TEXT | st.none()) if ids else draw(TEXT)}
        if ids:
            from firstchair.core.jsontext import dumps

            row["tool_calls"] = [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": draw(NAMES), "arguments": dumps(draw(ARGUMENTS))},
                }
                for call_id in ids
            ]
        rows.append(row)
        for call_id in ids:
            rows.append({"role": "tool", "tool_call_id": call_id, "content": draw(TEXT)})
    return rows


@st.composite
def _common_parts(draw: st.DrawFn) -> list[dict[str, Any]]:
    text = st.builds(lambda text: {"type": "text", "text": text}, TEXT)
    url = st.sampled_from(["https://x/y.png", "data:image/png;base64,AAAA"])
    image = st.builds(lambda url: {"type": "image_url", "image_url": {"url": url}}, url)
    return draw(st.lists(text | image, min_size=2, max_size=3))
