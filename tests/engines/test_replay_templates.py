"""Replay through real chat templates: one that only appends, and one that strips thinking from the history."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstchair.chat.messages import Message, Tool, ToolCall, assistant_message, text_message, tool_result
from firstchair.chat.renderer import Renderer
from firstchair.engines.base import Request, Sampling
from firstchair.testing.tiny_models import collect

TOOLS = (Tool(name="look", parameters={"type": "object", "properties": {"place": {"type": "string"}}}),)


def conversation(name: str) -> list[Message]:
    """Two turns, each with thinking, a call, its result and a reply."""
    messages = [text_message("system", "You look after things.")]
    for turn in range(2):
        call = ToolCall.of(f"c{turn}", "look", {"place": f"{name} {turn}"})
        messages += [
            text_message("user", f"What is in {name}, part {turn}?"),
            assistant_message(thinking=f"I should look at {name}.", calls=(call,)),
            tool_result(call, f"{name} holds {turn} boxes"),
            assistant_message(f"It holds {turn} boxes.", thinking="Now I know."),
        ]
    return messages


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers.utils import logging

    from firstchair.train.tiny import build_model, build_tokenizer, save_model

    logging.disable_progress_bar()
    tokenizer = build_tokenizer([m.text for name in "abc" for m in conversation(name)], 320)
    directory = tmp_path_factory.mktemp("model") / "m"
    save_model(build_model(len(tokenizer), hidden=32, layers=2, heads=2), tokenizer, directory)
    return directory


@pytest.mark.parametrize(("template", "appends"), [("tiny", True), ("qwen3", False)])
def test_every_decision_is_answered_as_if_it_stood_alone(model_dir, open_engine, template, appends):
    renderer = Renderer.from_pretrained(model_dir, template=template)
    assert renderer.append_only is appends
    requests = [
        Request(
            f"{name}:{end}",
            tuple(messages[:end]),
            TOOLS,
            group=name,
            sampling=Sampling(max_new_tokens=5),
        )
        for name in ("attic", "cellar")
        for messages in [conversation(name)]
        for end, message in enumerate(messages)
        if message.role == "assistant"
    ]
    packed = open_engine(model_dir, renderer, max_cached_tokens=0)
    found = collect(packed, requests)
    expected = collect(open_engine(model_dir, renderer, prefix_sharing=False), requests)
    assert {name: g.ids for name, g in found.items()} == {name: g.ids for name, g in expected.items()}
    for request in requests:
        assert list(found[request.request_id].prompt_ids) == renderer.prompt_ids(request.messages, TOOLS)
    # What one decision adds to the tree is little beside its prompt.
    new = sum(g.prompt_tokens - g.cached_tokens for g in found.values())
    assert new < sum(g.prompt_tokens for g in found.values()) / 2
