r"""Mathematical answers as text: one spelling for what is written in many ways, and the number that a text is.

Neither can hang: nothing here computes with a number that was not checked for its size first.
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_NUMBER_CHARS = 60
"""A longer numeral is compared as text; ``1e999999999`` is no number here either."""
TOLERANCE = Fraction(1, 1_000_000)
"""Relative, to the larger of the two."""

_SPACING = re.compile(r"\\[!,;: ]|\\(?:left|right|displaystyle|quad|qquad)(?![A-Za-z])|~")
_TEXT = re.compile(r"\\(?:text|mathrm|mathbf|textbf|mbox|operatorname)\s*\{([^{}]*)\}")
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree|°")
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\}| )(?=\d{3}(?!\d))")
_NAMED = re.compile(r"^[A-Za-z](?:_\w)?\s*=(?!=)")
_SHORT_FRAC = re.compile(r"\\frac\s*(\d)\s*(\d)(?!\d)")


def normal_math(text: str) -> str:
    r"""``text`` in one spelling: no ``$``, spaces, ``\left``, ``\text{}``, degrees, thousands commas, ``x =``."""
    text = " ".join(text.split())  # no run of spaces is left to be searched again and again
    for mark in ("$", r"\(", r"\)", r"\[", r"\]"):
        text = text.replace(mark, "")
    text = _SPACING.sub("", text)
    text = _TEXT.sub(r"\1", text)
    text = _DEGREES.sub("", text).replace(r"\%", "%").replace("−", "-")
    text = re.sub(r"\\[dt]frac(?![A-Za-z])", r"\\frac", text)
    text = _SHORT_FRAC.sub(r"\\frac{\1}{\2}", text)
    text = _NAMED.sub("", text.strip())
    text = _THOUSANDS.sub("", text)
    # Between two digits a space says that they are two numbers: 2 1/2 is not 21/2.
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text).removesuffix(".")


_DECIMAL = r"(?:\d+\.?\d*|\.\d+)"
_PLAIN = re.compile(rf"([+-]?)({_DECIMAL})(?:e([+-]?\d{{1,3}}))?", re.IGNORECASE)
_POWER = re.compile(rf"([+-]?)({_DECIMAL})(?:\\times|\\cdot|×|\*)10\^\{{?([+-]?\d{{1,3}})\}}?")
_RATIO = re.compile(rf"([+-]?)\(?([+-]?{_DECIMAL})/([+-]?{_DECIMAL})\)?")
_MIXED = re.compile(r"([+-]?)(\d+) (\d+)/(\d+)")
_FRAC = re.compile(rf"([+-]?)\\frac\{{([+-]?{_DECIMAL})\}}\{{([+-]?{_DECIMAL})\}}")


def number_of(normal: str) -> Fraction | None:
    r"""The number that a normal text is: ``1.5``, ``1e5``, ``2\times10^5``, ``3/4``, ``2 1/2``, ``\frac{3}{4}``."""
    if len(normal) > MAX_NUMBER_CHARS:
        return None
    if found := _PLAIN.fullmatch(normal) or _POWER.fullmatch(normal):
        value = Fraction(found[2]) * Fraction(10) ** int(found[3] or 0)
    elif found := _RATIO.fullmatch(normal) or _FRAC.fullmatch(normal):
        below = Fraction(found[3])
        if not below:
            return None
        value = Fraction(found[2]) / below
    elif (found := _MIXED.fullmatch(normal)) and int(found[4]):
        value = int(found[2]) + Fraction(int(found[3]), int(found[4]))
    else:
        return None
    return -value if found[1] == "-" else value


_COMMAND = re.compile(r"\\[A-Za-z]+")
_LONG_WORD = re.compile(r"[A-Za-z]{3,}")
_FUNCTIONS = frozenset({"sin", "cos", "tan", "cot", "sec", "csc", "exp", "log", "sqrt", "inf", "mod", "gcd", "lcm"})


def is_words(text: str) -> bool:
    """Whether a reference answer is words ("even", "see the proof"): algebra takes them for products of letters."""
    rest = _COMMAND.sub(" ", _TEXT.sub(r"\1", text))
    if re.search(r"[0-9=+*/^<>]", rest):
        return False
    return any(word.lower() not in _FUNCTIONS for word in _LONG_WORD.findall(rest))


_ALTERNATIVES = re.compile(r"\\[pm]m(?![A-Za-z])|±|\bor\b|=[^=,]*,[^=]*=")
_SEVERAL = re.compile(r",|\band\b")
MAX_ALTERNATIVES_CHARS = 200
"""In a longer answer "or" is a word of its sentences."""


def leaves_choice(gold: str, answer: str) -> bool:
    r"""Whether an answer names several values (``3 or 5``, ``\pm 5``, ``x=3, x=5``) where the reference answer names
    one: algebra would be content with any of them.
    """
    if len(answer) > MAX_ALTERNATIVES_CHARS or not _ALTERNATIVES.search(answer):
        return False
    return not _ALTERNATIVES.search(gold) and not _SEVERAL.search(gold)


def same_text_or_number(gold: str, answer: str) -> bool | None:
    """Whether two answers are equal as text or as numbers; ``None`` when only algebra can tell.

    Numbers are equal within ``TOLERANCE``. Two that are not are different, and no algebra is asked.
    """
    left, right = normal_math(gold), normal_math(answer)
    if left == right:
        return bool(left) or None
    a, b = number_of(left), number_of(right)
    if a is None or b is None:
        return None
    return abs(a - b) <= TOLERANCE * max(abs(a), abs(b))
