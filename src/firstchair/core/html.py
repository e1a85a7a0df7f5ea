"""What a page in one file needs: data that cannot end its script element, and the hash that lets one script run."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element: no ``<``, so nothing in it can end the element or open another."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def script_hash(script: str) -> str:
    """What ``script-src 'sha256-…'`` of a content policy says of the text of a script element."""
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
