"""Which option of a multiple-choice question an answer names."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

from firstchair.rewards.answers.boxed import last_boxed
from firstchair.rewards.answers.text_match import normal_text

LETTERS = string.ascii_uppercase
MAX_ALONE_CHARS = 40
"""A letter with brackets, stars and dots around it is no longer than this."""
WORDS = frozenset("AI")
"""Letters that are words of English as well."""

_WRAPPED = r"[\s*_`\"'“”()\[\]{}.:]*"
_ALONE = re.compile(rf"{_WRAPPED}(?:\\text\{{)?{_WRAPPED}([A-Za-z]){_WRAPPED}")
# "I" and "A" go on with a lower-case word when they are words ("I think", "A cat"), unless it explains the choice.
_NO_WORD = r"(?!(?<=[AI])\s+(?!(?:because|since|as|is|due|given|for)\b)[a-z])"
_IS = r"(?: (?:is|was|are|be|would be|must be|should be|option|choice|letter))* ?[:=]? ?"
_OR = r"[*_`)\]]*(?:,? (?:and|or|nor|&) | ?/ ?)[*_`(\[]*[A-Z](?![\w'’])"
_LETTER = rf"[*_`(\[\"'“]*\b([A-Z])\b(?!['’]\w)(?!{_OR}){_NO_WORD}"
_SAID = re.compile(rf"(?i:\b(?:answer|choose|chose|chosen|pick|picked|select|selected)\b){_IS}{_LETTER}")
_OPTION = rf"(?i:\b(?:option|choice)\b){_IS}{_LETTER}"
_MARKED = re.compile(rf"{_OPTION}|\(([A-Z])\)|\*\*([A-Z])\*\*|\[([A-Z])\]|^([A-Z])[).:](?=\s|$)", re.MULTILINE)
_BARE = re.compile(rf"(?<![\w'’\-])([A-Z])(?![\w'’\-])((?={_OR}|, ?[A-Z]\b))?")
"""A letter by itself, and whether another follows as its alternative: then neither "I" nor "A" is a word."""


def option_of(answer: str, choices: Sequence[str]) -> str | None:
    """The letter of the option that ``answer`` names, or ``None``: it names none, or several.

    In this order: the answer is a letter; it says so ("the answer is C"), the last time counts; one letter is marked
    ("option C", "(C)", "**C**", "C." at a line's beginning); the answer is an option's text; one letter stands by
    itself, where "I" and "A" are words; it holds the text of one option.
    """
    letters = LETTERS[: len(choices)]
    text = _tidy(last_boxed(answer) or answer)
    if alone := _letter_alone(text, letters):
        return alone
    if said := [match[1] for match in _SAID.finditer(text) if match[1] in letters]:
        return said[-1]
    marked = ["".join(filter(None, match.groups())) for match in _MARKED.finditer(text)]
    if (one := _single(marked, letters)) or (one := _same_text(text, choices)):
        return one
    bare = [match[1] for match in _BARE.finditer(text) if match[1] not in WORDS or match[2] is not None]
    return _single(bare, letters) or (_held_text(text, choices) if not set(bare) & set(letters) else None)


def _tidy(text: str) -> str:
    """``text`` with single spaces and no empty lines, so that no pattern meets a long run of white space."""
    return "\n".join(line for row in text.splitlines() if (line := " ".join(row.split())))


def _letter_alone(text: str, letters: str) -> str | None:
    alone = _ALONE.fullmatch(text) if len(text) <= MAX_ALONE_CHARS else None
    return alone[1].upper() if alone and alone[1].upper() in letters else None


def _single(found: Sequence[str], letters: str) -> str | None:
    distinct = {letter for letter in found if letter in letters}
    return distinct.pop() if len(distinct) == 1 else None


def _same_text(text: str, choices: Sequence[str]) -> str | None:
    own = normal_text(text)
    same = [letter for letter, choice in zip(LETTERS, choices, strict=False) if own and normal_text(choice) == own]
    return same[0] if len(same) == 1 else None


def _held_text(text: str, choices: Sequence[str]) -> str | None:
    """The one option whose words stand in ``text``; options that stand inside of another that does are left out."""
    own = f" {normal_text(text)} "
    held = {
        letter: normal
        for letter, choice in zip(LETTERS, choices, strict=False)
        if (normal := normal_text(choice)) and f" {normal} " in own
    }
    longest = [
        letter
        for letter, normal in held.items()
        if not any(other != normal and f" {normal} " in f" {other} " for other in held.values())
    ]
    return longest[0] if len(longest) == 1 else None


def gold_option(gold: str, choices: Sequence[str]) -> str | None:
    """The letter that the reference answer means: a letter, or an option's text. ``None`` when it is no option."""
    text = last_boxed(gold) or gold
    return _letter_alone(_tidy(text), LETTERS[: len(choices)]) or _same_text(text, choices)
