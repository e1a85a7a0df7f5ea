"""A provider's word for why an answer ended → why a generation stopped."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from firstchair.chat.wire_request import Finish
from firstchair.core.errors import DataError
from firstchair.engines.base import Stop

STOPS: Mapping[Finish, Stop] = MappingProxyType(
    {
        Finish.STOP: Stop.END,
        Finish.TOOL_CALLS: Stop.END,
        Finish.STOP_SEQUENCE: Stop.END,
        Finish.LENGTH: Stop.LENGTH,
        Finish.CONTEXT_WINDOW: Stop.LENGTH,
        Finish.REFUSAL: Stop.REFUSAL,
    }
)
"""A paused turn is not here: it asks to be continued, which no caller of ours does."""


def stop_of(finish: Finish) -> Stop:
    """Raises ``DataError`` for an ending that we do not handle: it must not pass for a stop."""
    if finish not in STOPS:
        raise DataError(f"found {finish.value!r}; an answer that is to be continued is not handled", field="finish")
    return STOPS[finish]
