"""The final answer in what a policy wrote, or what can be saved of a rollout that never came to one."""

from __future__ import annotations

import re
from collections.abc import Sequence

MARKER = "FINAL_ANSWER:"
"""Opens the last line of a rollout that came to its answer."""
# Counted, and not *: two unbounded runs of white space take a time that grows with the square of the blank lines.
_MARKER = re.compile(r"\*{0,3}\s{0,3}FINAL[_ ]ANSWER\s{0,3}\*{0,3}\s{0,3}:\s{0,3}\*{0,3}", re.IGNORECASE)


def marked_answer(text: str) -> str | None:
    """What stands after the last marker that something stands after; ``None`` without one.

    A marker written twice counts once, and bold type around it not at all.
    """
    return next((part.strip() for part in reversed(_MARKER.split(text)[1:]) if part.strip()), None)


def final_answer(text: str) -> str:
    """The answer in the last step's text: what is marked, else all of it."""
    marked = marked_answer(text)
    return text.strip() if marked is None and not _MARKER.search(text) else marked or ""


def salvaged_answer(said: Sequence[str], heard: Sequence[str]) -> str:
    """An answer out of a rollout that gave none: the last one that the policy marked on its way (``said``, its texts
    in order), else that of the model that answered last (``heard``). Empty when there is neither.
    """
    marked = next((found for text in reversed(said) if (found := marked_answer(text)) is not None), None)
    if marked is not None:
        return marked
    return final_answer(heard[-1]) if heard else ""
