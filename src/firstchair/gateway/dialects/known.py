"""Every wire dialect, by name."""

from __future__ import annotations

from firstchair.gateway.dialects.anthropic import AnthropicMessages
from firstchair.gateway.dialects.base import Dialect, DialectName
from firstchair.gateway.dialects.openai_chat import OpenAIChat
from firstchair.gateway.dialects.openai_responses import OpenAIResponses


def known_dialects() -> dict[DialectName, Dialect]:
    """The wire formats, by name."""
    return {"openai": OpenAIChat(), "responses": OpenAIResponses(), "anthropic": AnthropicMessages()}
