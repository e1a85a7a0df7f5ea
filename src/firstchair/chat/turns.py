"""Where assistant turns begin and end, in text and in tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TurnStyle:
    """The markers of a template family."""

    name: str
    header: str
    """What stands before every assistant message; it begins with a special token."""
    ends: tuple[str, ...]
    """End-of-turn tokens, the usual one first."""


STYLES: tuple[TurnStyle, ...] = (
    TurnStyle("chatml", "<|im_start|>assistant\n", ("<|im_end|>",)),
    TurnStyle("llama3", "<|start_header_id|>assistant<|end_header_id|>\n\n", ("<|eot_id|>", "<|eom_id|>")),
    TurnStyle("gemma", "<start_of_turn>model\n", ("<end_of_turn>",)),
)
"""Known families; any other template needs ``{% generation %}`` marks."""


@dataclass(frozen=True)
class TurnIds:
    """A ``TurnStyle`` in token ids."""

    header: tuple[int, ...]
    suffix: tuple[int, ...]
    """What the generation prompt holds after the header (``<think>\\n``): given to the model, so never trained."""
    ends: frozenset[int]


def find_turns(ids: Sequence[int], turn: TurnIds) -> tuple[list[tuple[int, int]], int]:
    """Assistant spans ``[start, end)`` of a stream, end-of-turn token included, and how many had the suffix.

    A header can only be made of real control tokens, since quoted ones were encoded as text. A span without an
    end token runs to the next header or the end of the stream.
    """
    spans: list[tuple[int, int]] = []
    header, suffix, ends = list(turn.header), list(turn.suffix), turn.ends
    size, first, with_suffix = len(ids), header[0], 0
    stream = ids if isinstance(ids, list) else list(ids)
    position = 0
    while True:
        try:
            position = stream.index(first, position)
        except ValueError:
            return spans, with_suffix
        if stream[position : position + len(header)] != header:
            position += 1
            continue
        start = position + len(header)
        if suffix and stream[start : start + len(suffix)] == suffix:
            start += len(suffix)
            with_suffix += 1
        end = start
        while end < size and stream[end] not in ends and stream[end] != first:
            end += 1
        if end < size and stream[end] in ends:
            end += 1
        spans.append((start, end))
        position = end


def turn_start(roles: Sequence[str], last: int) -> int:
    """Where the turn of message ``last`` begins: at the user message before it. 0 when there is none."""
    return next((index for index in range(last - 1, -1, -1) if roles[index] == "user"), 0)
