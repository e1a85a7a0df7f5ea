"""Random values of the desk: names, paths, times, phrases. Many, so that none can be learned by heart."""

from __future__ import annotations

import re
import zlib
from random import Random

from firstchair.rollout.desk import words

_NON_WORD = re.compile(r"[^a-z0-9]+")


class Values:
    """Draws values from one random stream; the same seed gives the same values in the same order."""

    def __init__(self, rng: Random):
        self.rng = rng

    def pick(self, options: tuple[str, ...]) -> str:
        """One of ``options``."""
        return options[int(self.rng.random() * len(options))]

    def below(self, limit: int) -> int:
        """An integer in ``[0, limit)``."""
        return int(self.rng.random() * limit)

    def chance(self, share: float) -> bool:
        """True in ``share`` of the draws."""
        return self.rng.random() < share

    def noun(self) -> str:
        return self.pick(words.NOUNS)

    def name(self) -> str:
        """First and last name."""
        return f"{self.pick(words.FIRST_NAMES)} {self.pick(words.LAST_NAMES)}"

    def email(self, name: str = "") -> str:
        """An address; of ``name`` when given."""
        first = (name or self.name()).split(" ")[0].lower()
        return f"{first}@{self.noun()}.{self.pick(('org', 'com', 'net', 'eu'))}"

    def phone(self) -> str:
        """``ddd-dddd``."""
        return f"{200 + self.below(800)}-{self.below(10_000):04d}"

    def time(self) -> str:
        """``HH:MM``."""
        return f"{7 + self.below(15):02d}:{5 * self.below(12):02d}"

    def impossible_time(self) -> str:
        """Looks like a time and is none."""
        return f"{25 + self.below(60):02d}:{5 * self.below(12):02d}"

    def time_span(self) -> tuple[str, str]:
        """Start and a later end."""
        start = 7 * 12 + self.below(12 * 12)
        end = start + 1 + self.below(24)
        return tuple(f"{slot // 12:02d}:{5 * (slot % 12):02d}" for slot in (start, end))  # type: ignore[return-value]

    def date(self) -> str:
        """``YYYY-MM-DD`` in the years of the desk."""
        return f"{2026 + self.below(2)}-{1 + self.below(12):02d}-{1 + self.below(28):02d}"

    def code(self) -> str:
        """A letter and some digits."""
        return f"{self.pick(tuple('ABCDEFGHKLMNPRSTVWXZ'))}{self.below(9000) + 1000}"

    def folder(self) -> str:
        """A folder, sometimes two deep."""
        top = self.pick(words.FOLDERS)
        return f"{top}/{self.noun()}" if self.chance(0.25) else top

    def file_name(self, ext: str) -> str:
        """A base name like ``harbor-memo.txt`` or ``lantern-48.txt``."""
        tail = self.noun() if self.chance(0.6) else str(10 + self.below(90))
        return f"{self.noun()}-{tail}.{ext}"

    def path(self, ext: str) -> str:
        """A file path below a folder."""
        return f"{self.folder()}/{self.file_name(ext)}"

    def title(self) -> str:
        """Two words in lower case: ``golden harbor``."""
        return f"{self.pick(words.ADJECTIVES)} {self.noun()}"

    def brand(self) -> str:
        """Two capitalised words: ``Golden Harbor``."""
        return f"{self.pick(words.ADJECTIVES).capitalize()} {self.noun().capitalize()}"

    def place(self) -> str:
        """A named place: ``Golden Harbor Hotel``."""
        return f"{self.brand()} {self.pick(words.PLACES)}"

    def chore(self) -> str:
        """Something to do: ``water the golden tulip``."""
        middle = f"{self.pick(words.ADJECTIVES)} " if self.chance(0.5) else ""
        return f"{self.pick(words.VERBS)} the {middle}{self.noun()}"

    def statement(self) -> str:
        """A short sentence without its full stop, to be passed on or written down."""
        kind = self.below(5)
        if kind == 0:
            return f"the {self.title()} is {self.pick(words.STATUSES)}"
        if kind == 1:
            return f"we meet at {self.time()} in room {self.below(400) + 1}"
        if kind == 2:
            return f"the {self.noun()} costs {self.below(900) + 10}"
        if kind == 3:
            return f"the {self.title()} arrives on {self.date()}"
        return f"please {self.chore()}"

    def thing(self) -> str:
        """Something personal that has a value: ``locker code``."""
        return f"{self.pick(words.THINGS)} {self.pick(words.THING_KINDS)}"

    def short_value(self) -> str:
        """A value for a fact or a field."""
        kind = self.below(5)
        if kind == 0:
            return self.code()
        if kind == 1:
            return str(self.below(9000) + 100)
        if kind == 2:
            return self.pick(words.COLORS)
        if kind == 3:
            return self.title()
        return self.noun()

    def field_value(self) -> str:
        """The value of a field in a document or page."""
        kind = self.below(6)
        if kind == 0:
            return self.name()
        if kind == 1:
            return self.date()
        if kind == 2:
            return self.time()
        if kind == 3:
            return self.pick(words.STATUSES)
        return self.code() if kind == 4 else str(self.below(9000) + 100)

    def fields(self, count: int) -> tuple[tuple[str, str], ...]:
        """``count`` different keys with values."""
        keys = self.rng.sample(words.KEYS, count)
        return tuple((key, self.field_value()) for key in keys)


def slug(text: str) -> str:
    """Lower-case words joined by dashes."""
    return _NON_WORD.sub("-", text.lower()).strip("-") or "item"


def stable_number(text: str, low: int, high: int) -> int:
    """A number in ``[low, high)`` that depends on ``text`` only."""
    return low + zlib.crc32(text.encode("utf-8")) % (high - low)
