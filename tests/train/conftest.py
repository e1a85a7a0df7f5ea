from pathlib import Path

import numpy as np
import pytest
import torch

from firstchair.core.config import validate
from firstchair.data.sft import sft_records, write_sft
from firstchair.testing.sessions import trip_session, trip_tools
from firstchair.train import attention
from firstchair.train.config import SftRecipe
from firstchair.train.examples import Example
from firstchair.train.scorer import TokenScorer
from firstchair.train.tiny import build_model, build_tokenizer, save_model

ROWS = 14


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """SFT records of the trip desk."""
    path = tmp_path_factory.mktemp("corpus") / "train.jsonl"
    write_sft(path, sft_records([trip_session(number) for number in range(ROWS)], lambda _: trip_tools()))
    return path


@pytest.fixture(scope="session")
def dev_corpus(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "dev.jsonl"
    write_sft(path, sft_records([trip_session(100 + number) for number in range(3)], lambda _: trip_tools()))
    return path


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory) -> Path:
    """A model of a few thousand weights with a tokenizer and a template."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    texts = [message.text for number in range(20) for message in trip_session(number).messages]
    tokenizer = build_tokenizer(texts, 480)
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
