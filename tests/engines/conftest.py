"""Tiny models saved once a test run, and engines that are closed after their test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from firstchair.engines.transformers_engine import TransformersEngine
from firstchair.testing.tiny_models import tiny_model


@pytest.fixture(scope="session")
def model_dirs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``model_dirs("Qwen3", **config)``: the directory of that tiny model."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    made: dict[str, Path] = {}

    def get(kind: str, **changes: Any) -> Path:
        name = f"{kind}-{sorted(changes.items())}"
        if name not in made:
            made[name] = tmp_path_factory.mktemp(kind)
            tiny_model(kind, **changes).save_pretrained(made[name])
        return made[name]

    return get


@pytest.fixture
def open_engine() -> Iterator[Callable[..., TransformersEngine]]:
    """``TransformersEngine``, closed after the test."""
    opened: list[TransformersEngine] = []

    def get(*arguments: Any, **options: Any) -> TransformersEngine:
        opened.append(TransformersEngine(*arguments, **options))
        return opened[-1]

    yield get
    for engine in opened:
        asyncio.run(engine.close())
