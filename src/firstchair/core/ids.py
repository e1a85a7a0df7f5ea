"""Names that others chose, as ids of ours."""

from __future__ import annotations

import re

_OTHER = re.compile(r"[^A-Za-z0-9._:@/+=#-]+")


def safe_id(text: str) -> str:
    """``text`` as an id: runs of other characters become one dash."""
    return _OTHER.sub("-", text).strip("-")[:256]
