"""Prompts counted before they are sent, where the model's tokenizer lies beside the configuration."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from firstchair.chat.messages import Message, RawPart, TextPart, ThinkingPart
from firstchair.core.errors import ConfigError
from firstchair.core.jsontext import dumps
from firstchair.gateway.dialects.base import ChatRequest


class PromptCounter:
    """Counts with one ``tokenizer.json``. The template's own tokens are left out: a count never says too much."""

    def __init__(self, folder: Path):
        self._path = folder / "tokenizer.json"
        if not self._path.is_file():
            raise ConfigError(f"tokenizer: {self._path}: no such file; expected the tokenizer.json of the model")
        self._tokenizer: Any = None

    async def count(self, request: ChatRequest) -> int:
        """Tokens of all messages and tools; off the event loop."""
        return await asyncio.to_thread(self._count, texts_of(request))

    def _count(self, texts: list[str]) -> int:
        if self._tokenizer is None:
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(str(self._path))
        return sum(len(found.ids) for found in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False))


def texts_of(request: ChatRequest) -> list[str]:
    """Every text that the model reads."""
    texts = [text for message in request.messages for text in _texts_in(message)]
    for tool in request.tools:
        texts += [tool.name, tool.description or "", dumps(tool.parameters)]
    return [text for text in texts if text]


def _texts_in(message: Message) -> list[str]:
    texts = [part.text for part in message.content if isinstance(part, TextPart | ThinkingPart)]
    texts += [dumps(part.data) for part in message.content if isinstance(part, RawPart)]
    for call in message.tool_calls:
        texts += [call.name, call.arguments]
    return texts


def estimated_tokens(size: int) -> int:
    """Tokens of ``size`` bytes or characters, by the usual four."""
    return (size + 3) // 4
