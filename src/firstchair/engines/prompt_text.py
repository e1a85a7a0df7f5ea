"""The text side of an in-process engine: messages to prompt ids, sampled ids to text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from firstchair.chat.messages import Message, Tool
from firstchair.core.errors import ConfigError, FirstchairError
from firstchair.engines.base import ErrorKind, Request
from firstchair.engines.jobs import RequestRefused


class PromptRenderer(Protocol):
    """What the engine asks of a renderer; ``chat.renderer.Renderer`` is the product's own."""

    tokenizer: Any
    tool_format: Any
    template_hash: str
    stop_ids: tuple[int, ...]

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[Tool] = ...) -> list[int]:
        """Token ids of the prompt for the next assistant message."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text with special tokens kept."""
        ...


@dataclass(frozen=True)
class TextSide:
    """A renderer, or the reason why there is none."""

    renderer: PromptRenderer | None
    tokenizer: Any
    """The renderer's, else the model directory's, else ``None``: then texts are empty."""
    why_none: str = ""

    @classmethod
    def of(cls, model_dir: Path, renderer: PromptRenderer | None) -> TextSide:
        """Use ``renderer``, or the tokenizer and template in ``model_dir`` as far as they are there."""
        if renderer is not None:
            return cls(renderer, renderer.tokenizer)
        from firstchair.chat.trained import trained_renderer

        try:
            own = trained_renderer(model_dir)
        except ConfigError as error:
            return cls(None, _tokenizer(model_dir), str(error))
        return cls(own, own.tokenizer)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a reply; empty without a renderer."""
        return self.renderer.stop_ids if self.renderer else ()

    @property
    def template_hash(self) -> str:
        """The renderer's; empty without one."""
        return self.renderer.template_hash if self.renderer else ""

    @property
    def tool_format(self) -> str:
        """Name of the tool-call syntax."""
        return (
            str(getattr(self.renderer.tool_format, "name", self.renderer.tool_format)) if self.renderer else "hermes"
        )

    def prompt(self, request: Request) -> Sequence[int]:
        """The prompt's ids. Raises ``RequestRefused`` when the messages cannot be rendered."""
        if request.prompt_ids is not None:
            return request.prompt_ids
        if self.renderer is None:
            raise RequestRefused(
                ErrorKind.BAD_REQUEST, f"messages need a renderer, give prompt_ids instead; {self.why_none}"
            )
        try:
            return self.renderer.prompt_ids(request.messages, request.tools)
        except FirstchairError as error:
            raise RequestRefused(ErrorKind.BAD_REQUEST, str(error)) from error

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids, special tokens kept."""
        if self.renderer is not None:
            return self.renderer.decode(ids)
        if self.tokenizer is None:
            return ""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _tokenizer(model_dir: Path) -> Any:
    if not (model_dir / "tokenizer.json").is_file():
        return None
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
