"""Other people's text inside a prompt, where it can be read and cannot end its own block.

    <<<answer A 5f0c…>>>
    whatever the candidate wrote, ``<<<end answer A …>>>`` with any other mark included
    <<<end answer A 5f0c…>>>

The mark is a hash of everything that is shown, so a text would have to hold its own hash to close its block; it is
looked for all the same, and another mark is taken where it occurs. Equal texts give equal prompts, as a cache needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from firstchair.core.jsontext import content_id

BLOCK_CHARS = 16_000
"""Of one text; the middle of a longer one is left out, so that neither its beginning nor its end can be hidden."""
_MARK_CHARS = 16


def fenced(blocks: Mapping[str, str]) -> str:
    """``blocks`` (name → text) one below the other, each between two lines that its text cannot hold."""
    texts = {name: shortened(text) for name, text in blocks.items()}
    mark = _mark(texts)
    return "\n\n".join(f"<<<{name} {mark}>>>\n{text}\n<<<end {name} {mark}>>>" for name, text in texts.items())


def shortened(text: str) -> str:
    """``text``, or its two ends with the number of characters between them when it is over ``BLOCK_CHARS``."""
    if len(text) <= BLOCK_CHARS:
        return text
    half = BLOCK_CHARS // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def _mark(texts: Mapping[str, str]) -> str:
    everything = "\n".join(texts.values()).lower()
    items = sorted(texts.items())
    return next(
        mark
        for attempt in itertools.count()
        if (mark := content_id([attempt, items])[:_MARK_CHARS]) not in everything
    )
