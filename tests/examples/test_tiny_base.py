"""The corpus of the tiny base model: every value of a call can be copied, and no convention of the desk is in it."""

import importlib
import sys
from pathlib import Path

import pytest

from firstchair.rollout.desk.definitions import desk_catalog
from firstchair.traces.checks import check_pairing

FOLDER = Path(__file__).parents[2] / "examples" / "tiny_base"


@pytest.fixture(scope="module")
def samples():
    sys.path.insert(0, str(FOLDER))
    try:
        corpus, draws = importlib.import_module("corpus"), importlib.import_module("draws")
    finally:
        sys.path.remove(str(FOLDER))
    rng = draws.Rng(7)
    rng.lexicon = ("harbor", "Agent", "memory")
    return [corpus.sample(rng, 1.0) for _ in range(300)]


def test_a_conversation_is_one(samples):
    for messages, _ in samples:
        check_pairing(messages)
        assert messages[-1].role in ("assistant", "tool")


def test_every_call_is_of_an_offered_tool_with_its_parameters(samples):
    for messages, tools in samples:
        offered = {tool.name: set(tool.parameters["properties"]) for tool in tools}
        for message in messages:
            for call in message.tool_calls:
                assert set(call.parsed() or {}) == offered[call.name]


def test_what_a_call_says_stands_in_the_context(samples):
    copied = total = 0
    for messages, _ in samples:
        context = ""
        for message in messages:
            for call in message.tool_calls:
                for key, value in (call.parsed() or {}).items():
                    words = value.split()[1:] if key == "command" else [value]  # the shell's own word is knowledge
                    copied += all(word in context for word in words)
                    total += 1
            context += f"\n{message.text}"
    assert total > 500
    assert copied / total > 0.97  # a text that opens a request is written with a capital there


def test_no_convention_of_the_desk_is_called(samples):
    conventions = {tool.name for tool in desk_catalog().tools if tool.kind == "convention"}
    called = {call.name for messages, _ in samples for message in messages for call in message.tool_calls}
    assert not conventions & called
