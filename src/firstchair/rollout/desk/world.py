"""The state of one desk session, and the small records it is made of.

The mailbox, the contact list, the calendar and the memory are their own records; ``tree()`` also shows them as
read-only files, which is how ``Grep`` and ``Read`` reach them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec

from firstchair.rollout.desk.web import Web, build_web

LARGE = 80
"""Characters of a result above which only a head is shown and the rest waits in the cache."""

HEAD = 40
"""At most so many characters of a large result are shown."""


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """Frozen, JSON-able."""


class Contact(_Record, frozen=True):
    """One person of the contact list."""

    name: str
    email: str
    phone: str


class Mail(_Record, frozen=True):
    """One received message."""

    sender: str
    body: str


class Event(_Record, frozen=True):
    """One calendar entry; ``date`` ``YYYY-MM-DD``, times ``HH:MM``."""

    title: str
    date: str
    start: str
    end: str


class Reminder(_Record, frozen=True):
    """One reminder; ``repeat`` is empty or ``daily``."""

    text: str
    time: str
    repeat: str = ""


class Sent(_Record, frozen=True):
    """A message that went out."""

    to: str
    body: str


class PhoneCall(_Record, frozen=True):
    """A call that was made; ``dialogue`` is a goal talked about, ``message`` a text left."""

    number: str
    message: str = ""
    dialogue: str = ""


class Artifact(_Record, frozen=True):
    """A file that a tool made: what kind, and of what."""

    path: str
    kind: str
    about: str


class WorldSeed(_Record, frozen=True, kw_only=True):
    """What a task says about the world at the start."""

    date: str
    time: str
    web: int
    memory: tuple[str, ...] = ()
    files: dict[str, str] = {}
    contacts: tuple[Contact, ...] = ()
    mail: tuple[Mail, ...] = ()
    events: tuple[Event, ...] = ()
    reminders: tuple[Reminder, ...] = ()


@dataclass(slots=True)
class World:
    """Everything a tool can change or read. Values are immutable, so a copy of the containers is a snapshot."""

    date: str
    minutes: int
    web: Web
    files: dict[str, str]
    folders: set[str]
    contacts: tuple[Contact, ...]
    mail: tuple[Mail, ...]
    memory: list[str]
    events: list[Event]
    reminders: list[Reminder]
    sent: list[Sent] = field(default_factory=list)
    phone_calls: list[PhoneCall] = field(default_factory=list)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    shared: list[str] = field(default_factory=list)
    loaded_skills: set[str] = field(default_factory=set)
    cache: dict[str, str] = field(default_factory=dict)
    next_result: int = 10

    @classmethod
    def start(cls, seed: WorldSeed, *, first_result: int = 10) -> World:
        """The world at the start; ``first_result`` is the number of the first cached result."""
        hours, minutes = seed.time.split(":")
        return cls(
            date=seed.date,
            minutes=60 * int(hours) + int(minutes),
            web=build_web(seed.web),
            files=dict(seed.files),
            folders=set(),
            contacts=seed.contacts,
            mail=seed.mail,
            memory=list(seed.memory),
            events=list(seed.events),
            reminders=list(seed.reminders),
            next_result=first_result,
        )

    def copy(self) -> World:
        """An independent copy."""
        return replace(
            self,
            files=dict(self.files),
            folders=set(self.folders),
            memory=list(self.memory),
            events=list(self.events),
            reminders=list(self.reminders),
            sent=list(self.sent),
            phone_calls=list(self.phone_calls),
            artifacts=dict(self.artifacts),
            shared=list(self.shared),
            loaded_skills=set(self.loaded_skills),
            cache=dict(self.cache),
        )

    @property
    def clock(self) -> str:
        """The time of day, ``HH:MM``; every tool call takes a minute."""
        return f"{self.minutes // 60 % 24:02d}:{self.minutes % 60:02d}"

    def records(self) -> dict[str, str]:
        """The read-only files that show mailbox, contacts, calendar and memory."""
        shown = {
            "contacts.txt": "\n".join(f"{who.name}, {who.email}, {who.phone}" for who in self.contacts),
            "calendar.txt": "\n".join(f"{one.date} {one.start}-{one.end} {one.title}" for one in self.events),
            "memory.txt": "\n".join(self.memory),
        }
        for number, mail in enumerate(self.mail, start=1):
            shown[f"mail/{number:02d}.txt"] = f"from {mail.sender}: {mail.body}"
        return shown

    def tree(self) -> dict[str, str]:
        """Every file that can be read, the record files included."""
        return {**self.records(), **self.files}

    def add_artifact(self, path: str, kind: str, about: str, text: str) -> str:
        """Store a made file under ``path``, or under the next free name; returns the name taken."""
        stem, dot, ext = path.rpartition(".")
        name, number = path, 1
        while name in self.files:
            number += 1
            name = f"{stem}-{number}{dot}{ext}"
        self.files[name] = text
        self.artifacts[name] = Artifact(name, kind, about)
        return name

    def shorten(self, text: str) -> str:
        """``text``, or its head and the id under which the rest can be loaded when it is large."""
        if len(text) <= LARGE:
            return text
        cut = max(text.rfind(". ", 0, HEAD) + 1, text.rfind("\n", 0, HEAD)) or text.rfind(" ", 0, HEAD)
        cut = cut if cut > 0 else HEAD
        result_id = f"r{self.next_result}"
        self.next_result += 1
        self.cache[result_id] = text[cut:].strip()
        return f"{text[:cut].rstrip()} …cut; result_id={result_id}"
