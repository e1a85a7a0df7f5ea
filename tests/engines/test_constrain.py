"""Constrained decoding: whatever an untrained model prefers, its calls are well-formed and whole."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from firstchair.chat.messages import Tool, text_message
from firstchair.chat.renderer import Renderer
from firstchair.engines.base import ErrorKind, Request, Sampling, Stop
from firstchair.engines.constrain import CallGuide, Grammars
from firstchair.engines.jobs import RequestRefused
from firstchair.engines.transformers_engine import TransformersEngine
from firstchair.testing.tiny_models import collect

BOOK = Tool(
    name="book_flight",
    parameters={
        "type": "object",
        "properties": {
            "user_id": {"type": "string", "description": "who"},
            "cabin": {"type": "string", "enum": ["economy", "business"]},
            "legs": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"number": {"type": "string"}, "date": {"type": "string", "format": "day"}},
                    "required": ["number"],
                },
            },
            "bags": {"type": "integer", "minimum": 0, "maximum": 9},
            "price": {"type": "number"},
            "note": {"type": ["string", "null"], "default": None},
        },
        "required": ["user_id", "cabin"],
    },
)
ANYTHING = Tool(name="anything", parameters={"type": "object"})
NOTHING = Tool(name="nothing")
TOOLS = (BOOK, ANYTHING, NOTHING)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose vocabulary is little more than the bytes, so that it stumbles into calls."""
    from transformers.utils import logging

    from firstchair.train.tiny import build_model, build_tokenizer, save_model

    logging.disable_progress_bar()
    texts = [json.dumps({"name": tool.name, "arguments": tool.parameters}) for tool in TOOLS] * 3
    tokenizer = build_tokenizer(texts, 330)
    directory = tmp_path_factory.mktemp("model") / "m"
    save_model(build_model(len(tokenizer), hidden=32, layers=1, heads=2), tokenizer, directory)
    return directory


@pytest.fixture(scope="module")
def renderer(model_dir: Path) -> Renderer:
    return Renderer.from_pretrained(model_dir)


def requests_for(renderer: Renderer, tools: tuple[Tool, ...], count: int, new: int) -> list[Request]:
    prompt = tuple(renderer.prompt_ids((text_message("user", "hi"),), tools))
    return [
        Request(
            str(seed),
            prompt_ids=prompt,
            tools=tools,
            constrain=True,
            sampling=Sampling(max_new_tokens=new, temperature=2.0, seed=seed),
        )
        for seed in range(count)
    ]


@pytest.mark.parametrize(("new", "count"), [(30, 60), (120, 60)])
@pytest.mark.parametrize("tools", [TOOLS, (ANYTHING,)], ids=["three tools", "free-form arguments"])
def test_an_untrained_model_never_writes_a_malformed_call(model_dir, renderer, open_engine, tools, new, count):
    engine = open_engine(model_dir, renderer)
    calls: Counter[str] = Counter()
    for generation in collect(engine, requests_for(renderer, tools, count, new)).values():
        assert generation.stop in (Stop.END, Stop.LENGTH)
        reply = renderer.parse(generation.text, tools)
        assert not reply.malformed, (generation.text, reply.problems)
        assert all(problem.kind != "unknown_tool" for problem in reply.problems)
        calls.update(call.name for call in reply.calls)
        for call in reply.calls:
            # Spaced as json.dumps does it, number spellings apart.
            assert call.arguments == "{}" or call.arguments[1] == '"'
    if new > 100:
        assert calls.total() >= 5


def test_one_request_at_a_time_is_constrained_in_the_same_way(model_dir, renderer, open_engine):
    requests = requests_for(renderer, TOOLS, 6, 80)
    packed = collect(open_engine(model_dir, renderer), requests)
    alone = collect(open_engine(model_dir, renderer, prefix_sharing=False), requests)
    assert {name: g.ids for name, g in packed.items()} == {name: g.ids for name, g in alone.items()}


def test_text_without_a_call_is_left_alone(model_dir, renderer, open_engine):
    from dataclasses import replace

    engine = open_engine(model_dir, renderer)
    requests = requests_for(renderer, TOOLS, 30, 20)
    constrained = collect(engine, requests)
    free = collect(engine, [replace(request, constrain=False) for request in requests])
    quiet = [name for name, generation in free.items() if "<tool_call>" not in generation.text]
    assert len(quiet) > 5
    assert all(constrained[name].ids == free[name].ids for name in quiet)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "object", "properties": {"a": {"not": {"type": "string"}}}}, "not"),
        ({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)y"}}}, "look-around"),
        ({"type": "object", "properties": {"a": {"$ref": "http://example.com/s"}}}, "example.com"),
        ({"type": "string"}, "expected object"),
    ],
)
def test_a_schema_that_cannot_be_used_is_an_error_naming_the_tool(model_dir, renderer, open_engine, schema, reason):
    tools = (BOOK, Tool(name="odd_tool", parameters=schema))
    engine = open_engine(model_dir, renderer)
    requests = [
        *requests_for(renderer, tools, 1, 4),
        Request("fine", prompt_ids=(5, 6), sampling=Sampling(max_new_tokens=2)),
    ]
    found = collect(engine, requests)
    assert (found["0"].stop, found["0"].error_kind) == (Stop.ERROR, ErrorKind.BAD_REQUEST)
    assert "tools[1] 'odd_tool'" in found["0"].error
    assert reason in found["0"].error
    assert found["fine"].stop is Stop.LENGTH


def test_other_call_syntaxes_are_refused(renderer):
    with pytest.raises(RequestRefused, match="llama_json"):
        Grammars(renderer.tokenizer).guide(TOOLS, "llama_json", 400)
    with pytest.raises(RequestRefused, match="no tokenizer"):
        Grammars(None).guide(TOOLS, "hermes", 400)


def drive(guide: CallGuide, ids: list[int], left: int = 500) -> list[bool]:
    """Whether each token was possible when its turn came; stops at the first that was not."""
    verdicts = []
    for place, token in enumerate(ids):
        allowed = guide.allowed(left - place)
        verdicts.append((allowed is None or bool(allowed[token])) and guide.admits(token))
        if not verdicts[-1]:
            break
        guide.consume(token)
    return verdicts


@pytest.fixture(scope="module")
def grammars(renderer: Renderer) -> Grammars:
    return Grammars(renderer.tokenizer)


def possible(grammars: Grammars, renderer: Renderer, text: str, tools: Any = TOOLS, left: int = 500) -> bool:
    ids = renderer.tokenizer.encode(text, add_special_tokens=False)
    return all(drive(grammars.guide(tools, "hermes", renderer.vocab_size), ids, left))


GOOD = '<tool_call>{"name": "book_flight", "arguments": {"user_id": "a b", "cabin": "economy"}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD, True),
        ("some text " + GOOD + "\n" + GOOD + " more", True),
        (GOOD.replace("<tool_call>", "<tool_call>\n").replace("</tool", "\n</tool"), True),
        ('<tool_call>{"name": "nothing", "arguments": {}}</tool_call>', True),
        ('<tool_call>{"name": "nothing", "arguments": {"a": 1}}</tool_call>', False),
        (GOOD.replace("economy", "first"), False),
        (GOOD.replace(', "cabin": "economy"', ""), False),
        (GOOD.replace('"cabin"', '"caban"'), False),
        (GOOD.replace("book_flight", "book"), False),
        (GOOD.replace("economy", 'economy", "bags": 12, "x": "'), False),
        (GOOD.replace('"economy"', '"economy", "price": 1e999'), False),
        (GOOD.replace("a b", "\\ud800"), False),
        ('<tool_call>{"name": "anything", "arguments": {"a": {"b": [1, null]}, "c": 2}}</tool_call>', True),
        ('<tool_call>{"name": "anything", "arguments": {"a": 1, "a": 2}}</tool_call>', False),
        ('<tool_call>{"name": "anything", "arguments": {"a": 1, "\\u0061": 2}}</tool_call>', False),
        ('<tool_call>{"name": "anything", "arguments": {"a": ' + "[" * 40 + "]" * 40 + "}}</tool_call>", False),
    ],
)
def test_the_grammar_takes_well_formed_calls_and_nothing_else(grammars, renderer, text, expected):
    assert possible(grammars, renderer, text) is expected


def test_a_call_is_not_opened_when_too_few_tokens_are_left_to_finish_it(grammars, renderer):
    opening = renderer.tokenizer.encode("<tool_call>", add_special_tokens=False)
    guide = grammars.guide((BOOK,), "hermes", renderer.vocab_size)
    needed = guide._grammar.need_to_open
    assert drive(grammars.guide((BOOK,), "hermes", renderer.vocab_size), opening, needed + 1) == [True]
    assert drive(grammars.guide((BOOK,), "hermes", renderer.vocab_size), opening, needed) == [False]


@pytest.mark.parametrize("seed", range(8))
def test_a_call_begun_is_always_finished_within_its_limit(grammars, renderer, seed):
    """A walk that takes any admitted token at random, at the tightest limits."""
    draw = random.Random(seed)
    guide = grammars.guide(TOOLS, "hermes", renderer.vocab_size)
    left = guide._grammar.need_to_open + draw.randrange(1, 60)
    token = renderer.tokenizer.convert_tokens_to_ids("<tool_call>")
    ids: list[int] = []
    while left > 0:
        allowed = guide.allowed(left)
        if ids and allowed is None:
            break
        candidates = [token] if not ids else draw.sample(range(renderer.vocab_size), renderer.vocab_size)
        chosen = next(
            (t for t in candidates if (allowed is None or bool(allowed[t])) and guide.admits(t)), guide.way_out()
        )
        guide.consume(chosen)
        ids.append(chosen)
        left -= 1
    reply = renderer.parse(renderer.decode(ids), TOOLS)
    assert len(reply.calls) == 1
    assert not reply.malformed


def test_grammars_are_compiled_once_a_tool_list(grammars, renderer):
    first = grammars.guide(TOOLS, "hermes", renderer.vocab_size)
    assert grammars.guide(TOOLS, "hermes", renderer.vocab_size)._grammar is first._grammar


def test_a_constrained_request_without_tools_is_free(model_dir, renderer, open_engine):
    engine = open_engine(model_dir, renderer)
    request = Request("r", (text_message("user", "hi"),), constrain=True, sampling=Sampling(max_new_tokens=3))
    assert collect(engine, [request])["r"].stop in (Stop.END, Stop.LENGTH)


def test_messages_are_rendered_and_replies_decoded(model_dir, renderer):
    engine = TransformersEngine(model_dir)
    messages = (text_message("user", "hello"),)
    found = collect(engine, [Request("r", messages, TOOLS, sampling=Sampling(max_new_tokens=6))])["r"]
    assert list(found.prompt_ids) == renderer.prompt_ids(messages, TOOLS)
    assert found.text == renderer.decode(found.ids)
    assert engine.info().template_hash == renderer.template_hash
    asyncio.run(engine.close())
