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
        return self.pick(words.THINGS)

    def thing_value(self, thing: str) -> str:
        """A value that fits ``thing``."""
        kind = thing.rpartition(" ")[2]
        if kind in ("code", "password"):
            return self.code()
        if kind in ("number", "spot", "size"):
            return str(self.below(9000) + 30)
        if kind == "color":
            return self.pick(words.COLORS)
        return self.pick(words.DAYS) if kind == "day" else self.title()

    def _field_value(self, key: str) -> str:
        if key in words.KEYS_OF_PEOPLE:
            return self.name()
        if key in words.KEYS_OF_DATES:
            return self.date()
        if key in words.KEYS_OF_TIMES:
            return self.time()
        if key in words.KEYS_OF_NUMBERS:
            return str(self.below(9000) + 100)
        return self.code() if key in words.KEYS_OF_CODES else self.pick((*words.COLORS, *words.STATUSES))

    def fields(self, count: int) -> tuple[tuple[str, str], ...]:
        """``count`` different keys with values that fit them."""
        return tuple((key, self._field_value(key)) for key in self.rng.sample(KEYS, count))


KEYS = (
    *words.KEYS_OF_PEOPLE,
    *words.KEYS_OF_DATES,
    *words.KEYS_OF_TIMES,
    *words.KEYS_OF_NUMBERS,
    *words.KEYS_OF_CODES,
    *words.KEYS_OF_STATES,
)
"""What documents and pages tell something about."""


def slug(text: str) -> str:
    """Lower-case words joined by dashes."""
    return _NON_WORD.sub("-", text.lower()).strip("-") or "item"


def stable_number(text: str, low: int, high: int) -> int:
    """A number in ``[low, high)`` that depends on ``text`` only."""
    return low + zlib.crc32(text.encode("utf-8")) % (high - low)
