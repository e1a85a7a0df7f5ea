"""Tool-call syntaxes by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from firstchair.chat.formats.base import ToolCallFormat
from firstchair.chat.formats.hermes import Hermes
from firstchair.chat.formats.llama_json import LlamaJson
from firstchair.chat.formats.mistral import Mistral
from firstchair.chat.formats.native import Native, read_message
from firstchair.chat.formats.qwen_xml import QwenXml
from firstchair.core.errors import ConfigError

FORMATS: Mapping[str, ToolCallFormat] = MappingProxyType(
    {
        "hermes": Hermes(),
        "qwen_xml": QwenXml(),
        "llama_json": LlamaJson(),
        "mistral": Mistral(),
        "native": Native(),
    }
)
"""Every syntax that we write and read."""


def tool_call_format(name: str) -> ToolCallFormat:
    """The format called ``name``; raises ``ConfigError`` for an unknown one."""
    if name not in FORMATS:
        raise ConfigError(f"tool format {name!r} is unknown; use one of {sorted(FORMATS)}")
    return FORMATS[name]


__all__ = ["FORMATS", "ToolCallFormat", "read_message", "tool_call_format"]
