from pathlib import Path

import numpy as np
import pytest
import torch

from firstchair.chat.messages import Tool, ToolCall, assistant_message, text_message, tool_result
from firstchair.core.config import validate
from firstchair.data.sft import SftRecord, write_sft
from firstchair.train import attention
from firstchair.train.base_model import copy_base_model
from firstchair.train.config import SftRecipe
from firstchair.train.examples import Example
from firstchair.train.scorer import TokenScorer
from firstchair.train.tiny import build_model, build_tokenizer, save_model

ROWS = 14
TOOLS = (Tool(name="find", description="Find it.", parameters={"properties": {"key": {"type": "string"}}}),)


def small_record(number: int) -> SftRecord:
    """A conversation of a few dozen tokens: a call, its result, a reply; longer with the number."""
    key = f"{(number * 7919) % 1000:03d}"
    call = ToolCall.of(f"call_{number}", "find", {"key": key})
    messages = (
        text_message("system", "You find keys."),
        text_message("user", f"find {key}" + " please" * (number % 9)),
        assistant_message("", calls=(call,)),
        tool_result(call, f"in box {key[::-1]}"),
        assistant_message(f"box {key[::-1]}"),
    )
    loss = tuple(message.role == "assistant" for message in messages)
    return SftRecord(id=f"r{number}", messages=messages, loss=loss, tools=TOOLS)


@pytest.fixture(scope="session")
def base(tmp_path_factory) -> Path:
    """The model that the package ships."""
    return copy_base_model(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="module")
def one_thread():
    """For tiny models, which more threads slow down."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """SFT records of the trip desk."""
    path = tmp_path_factory.mktemp("corpus") / "train.jsonl"
    write_sft(path, map(small_record, range(ROWS)))
    return path


@pytest.fixture(scope="session")
def dev_corpus(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "dev.jsonl"
    write_sft(path, map(small_record, range(100, 103)))
    return path


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory) -> Path:
    """A model of a few thousand weights with a tokenizer and a template."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    texts = [message.text for number in range(20) for message in small_record(number).messages]
    tokenizer = build_tokenizer([*texts, '{"name": "find", "arguments": {"key": "'], 400)
    model = build_model(len(tokenizer), hidden=16, layers=2, heads=2, intermediate=32)
    save_model(model, tokenizer, path)
    return path


@pytest.fixture
def recipe_of(model_dir, corpus, dev_corpus, tmp_path):
    """Make a recipe for the tiny model; keyword arguments replace fields."""

    def make(**fields) -> SftRecipe:
        data = {"train": corpus, "dev": dev_corpus, **fields.pop("data", {})}
        base = {
            "model": model_dir,
            "out": tmp_path / "run",
            "data": data,
            "batch": {"sessions": 4, "micro_tokens": 4096},
            "optimizer": {"type": "adamw", "lr": 3e-3},
            "max_steps": 3,
        }
        return validate(SftRecipe, {**base, **fields}, source="test")

    return make


def random_examples(lengths, *, vocab=50, seed=0, untrained=()) -> list[Example]:
    """Rows of random ids; about half of the tokens trained, none in the rows named in ``untrained``."""
    generator = np.random.default_rng(seed)
    rows = []
    for key, length in enumerate(lengths):
        mask = generator.random(length) < 0.5
        mask[-1] = True
        if key in untrained:
            mask[:] = False
        mask[0] = False
        rows.append(Example(generator.integers(0, vocab, length).astype(np.int32), mask, key=key))
    return rows


@pytest.fixture
def scorer() -> TokenScorer:
    """A random Qwen3 with the trainer's attention; weights large enough that every leak would show."""
    model = build_model(50, hidden=16, layers=2, heads=2, intermediate=32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(10)
    model.set_attn_implementation(attention.install())
    return TokenScorer(model.train())
