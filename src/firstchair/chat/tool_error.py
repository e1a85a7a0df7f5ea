"""How a failed tool call is told on wires that have no field for it: ``[tool_error] `` before the content.

The rule is a bijection, so that nothing is lost: text of a *successful* call that itself begins with the prefix
(after any number of backslashes) gets one more backslash, which reading takes off again.
"""

from __future__ import annotations

import re

PREFIX = "[tool_error] "
_LOOKS_MARKED = re.compile(r"\\*\[tool_error\] ")


def mark_error(text: str, is_error: bool) -> str:
    """The text of a tool result with its error flag in it."""
    if is_error:
        return PREFIX + text
    # Nearly every result begins with neither character.
    if text[:1] in ("[", "\\") and _LOOKS_MARKED.match(text):
        return "\\" + text
    return text


def read_error(text: str) -> tuple[str, bool]:
    """The text and the error flag of a tool result that came over such a wire; undoes ``mark_error``."""
    if text.startswith(PREFIX):
        return text[len(PREFIX) :], True
    if text.startswith("\\") and _LOOKS_MARKED.match(text):
        return text[1:], False
    return text, False
