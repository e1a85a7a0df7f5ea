"""JSON for the wire."""

from __future__ import annotations

import json
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


def encoded(body: Any) -> bytes:
    """JSON bytes, integers of any size kept."""
    try:
        return _encode(body)
    except (OverflowError, msgspec.MsgspecError):
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
