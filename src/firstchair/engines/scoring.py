"""What a given reply costs under the model: log-probabilities of tokens somebody else chose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firstchair.core.errors import BadRequest


@dataclass(frozen=True, slots=True)
class ScoreItem:
    """``ids`` as the continuation of ``prompt_ids``; both hold at least one token."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    group: str = ""


def check_items(items: Sequence[ScoreItem], *, vocab_size: int, window: int | None) -> None:
    """Raise ``BadRequest`` naming the item that is empty, outside the vocabulary or over the window."""
    for index, item in enumerate(items):
        where = f"items[{index}]"
        if not item.prompt_ids or not item.ids:
            raise BadRequest("prompt_ids and ids must hold at least one token each", param=where)
        sequence = item.prompt_ids + item.ids
        if min(sequence) < 0 or max(sequence) >= vocab_size:
            raise BadRequest(f"token ids must lie in 0 to {vocab_size - 1}", param=where)
        # The last token is only predicted, never read.
        if window is not None and len(sequence) - 1 > window:
            raise BadRequest(
                f"{len(sequence):,} tokens; the context window holds {window:,}; shorten the conversation",
                param=where,
            )
