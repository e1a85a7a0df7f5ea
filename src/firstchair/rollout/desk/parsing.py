"""From what a user wrote to intents with slots. Sentences that fit no wording are small talk around the request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

from firstchair.rollout.desk.phrases import ANSWERS, SLOT_PATTERNS, TEMPLATES

_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Intent:
    """What one sentence asks for."""

    name: str
    slots: Mapping[str, str]


def template_regex(template: str) -> re.Pattern[str]:
    """The regular expression of a wording."""
    pieces = _SLOT.split(template)
    return re.compile(
        "".join(
            f"(?P<{piece}>{SLOT_PATTERNS[piece]})" if place % 2 else re.escape(piece)
            for place, piece in enumerate(pieces)
        )
    )


@cache
def _by_first_word() -> Mapping[str, tuple[tuple[str, re.Pattern[str]], ...]]:
    """Wordings by their first word; those that begin with a slot stand under the empty word."""
    table: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for intent, templates in TEMPLATES.items():
        for template in templates:
            first = template.split(" ")[0]
            table.setdefault("" if "{" in first else first, []).append((intent, template_regex(template)))
    return {word: tuple(rows) for word, rows in table.items()}


def candidates(sentence: str) -> list[Intent]:
    """Every reading of a sentence, the one with the least free text first."""
    table = _by_first_word()
    found: list[tuple[int, Intent]] = []
    for word in (sentence.split(" ")[0], ""):
        for intent, regex in table.get(word, ()):
            match = regex.fullmatch(sentence)
            if match:
                slots = match.groupdict()
                found.append((sum(len(value) for value in slots.values()), Intent(intent, slots)))
    return [intent for _, intent in sorted(found, key=lambda pair: pair[0])]


LONGEST = 400
"""No request of the desk is longer; longer text is not looked at, which bounds the work on foreign text."""


@lru_cache(maxsize=8192)
def parse(text: str) -> tuple[Intent, ...]:
    """The intents of a user message, in order; greetings and the like count only when nothing else is asked."""
    if len(text) > LONGEST:
        return ()
    readings = (candidates(sentence) for sentence in _SENTENCE.split(text.strip()))
    intents = tuple(found[0] for found in readings if found)
    asked = tuple(intent for intent in intents if intent.name not in ("greeting", "thanks", "small_talk"))
    return asked or intents[:1]


@cache
def _answer_regexes() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(re.escape(form).replace(r"\{value\}", "(.+?)") + r"\.?") for form in reversed(ANSWERS))


def answer_value(text: str) -> str:
    """The bare value of a user's answer to a question."""
    for regex in _answer_regexes():
        match = regex.fullmatch(text.strip())
        if match:
            return match.group(1)
    return text.strip()
