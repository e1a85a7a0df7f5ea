r"""What stands in ``\boxed{…}``."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\\(?:boxed|fbox)\s*(?:(\{)|([^\s{}$.,;\\]+))|\\.|[{}]", re.DOTALL)


def last_boxed(text: str) -> str | None:
    r"""The content of the last whole ``\boxed{…}`` or ``\fbox{…}``, braces inside it included; ``\boxed 5`` too.

    A box inside of another belongs to it, unless the outer one is cut off. ``None`` when there is none. Takes time
    in proportion to the text.
    """
    found: str | None = None
    opened: list[int | None] = []
    """For each open brace: where the content of its box begins; ``None`` when it is no box's."""
    for token in _TOKEN.finditer(text):
        if token[1]:
            opened.append(token.end())
        elif token[2]:
            found = token[2]
        elif token[0] == "{":
            opened.append(None)
        elif token[0] == "}" and opened and (start := opened.pop()) is not None:
            found = text[start : token.start()].strip()  # the outer one closes last
    return found
