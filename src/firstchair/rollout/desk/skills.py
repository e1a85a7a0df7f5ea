"""The desk's skills: instruction texts that ``skill`` loads, and the scripts that ``skill_script`` then runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from firstchair.rollout.desk.filetree import normalize
from firstchair.rollout.desk.values import slug, stable_number
from firstchair.rollout.desk.words import TOPICS
from firstchair.rollout.desk.world import PhoneCall, Reminder, World


class ScriptError(ValueError):
    """A script that failed; the text is what the model reads."""


Script = Callable[[World, str], str]

_TIMED = re.compile(r"(.+) at ([01]\d|2[0-3]):([0-5]\d)")
_NUMBER = re.compile(r"\b\d{3}-\d{4}\b")


def made_path(folder: str, about: str, ext: str) -> str:
    """A file name for something made about ``about``: its last word and a number."""
    last = slug(about.partition(".")[0]).rpartition("-")[2]
    return f"{folder}/{last}-{stable_number(about, 100, 1000)}.{ext}"


def _file(world: World, name: str, ext: str) -> str:
    try:
        path = normalize(name)
    except ValueError as error:
        raise ScriptError(str(error)) from None
    if path not in world.files:
        raise ScriptError(f"no such file: {name}")
    if not path.endswith(ext):
        raise ScriptError(f"bad argument: {name} is not a {ext} file")
    return path


def _make_docx(world: World, about: str) -> str:
    path = world.add_artifact(made_path("out", about, "docx"), "docx", about, f"title: {about}.")
    return f"saved {path}"


def _make_sheet(world: World, about: str) -> str:
    path = world.add_artifact(made_path("out", about, "xlsx"), "xlsx", about, f"title: {about}.")
    return f"saved {path}"


def _sum_sheet(world: World, name: str) -> str:
    cells = re.split(r"[,\n]", world.files[_file(world, name, ".csv")])
    return f"sum: {sum(int(cell) for cell in cells if cell.strip().isdecimal())}"


def _pdf_text(world: World, name: str) -> str:
    return world.files[_file(world, name, ".pdf")]


def _compare(world: World, query: str) -> str:
    pages = world.web.find(query)
    terms = query.lower().split()
    values = [f"{key}: {value}" for page in pages for key, value in page.facts if key in terms]
    if not values:
        raise ScriptError(f"nothing found about {query}")
    agree = "agree" if len(set(values)) == 1 else "differ"
    return f"{len(values)} sites {agree}: {'; '.join(dict.fromkeys(values))}."


def _converse(world: World, goal: str) -> str:
    number = _NUMBER.search(goal)
    if number is None:
        raise ScriptError("bad argument: no phone number")
    world.phone_calls.append(PhoneCall(number=number.group(), dialogue=goal))
    return f"they agreed; confirmation K{stable_number(goal, 1000, 10_000)}"


def _derive(verb: str) -> Script:
    def script(world: World, name: str) -> str:
        source = _file(world, name, ".mp4")
        path = world.add_artifact(made_path("videos", f"{verb} {source}", "mp4"), verb, source, f"{verb} of {source}")
        return f"saved {path}"

    return script


def _repeat(world: World, text: str) -> str:
    timed = _TIMED.fullmatch(text.strip())
    if timed is None:
        raise ScriptError("bad argument: end with at HH:MM")
    world.reminders.append(Reminder(timed.group(1), f"{timed.group(2)}:{timed.group(3)}", "daily"))
    return f"repeats daily: {text.strip()}"


def _list_reminders(world: World, _: str) -> str:
    rows = [f"{one.time} {one.text}" for one in world.reminders]
    return "; ".join(rows) if rows else "no reminders"


def _lookup(world: World, topic: str) -> str:
    if topic not in TOPICS:
        raise ScriptError(f"no help about {topic}")
    return f"to {topic}, open menu {stable_number(topic, 10, 100)}"


SCRIPTS: Mapping[str, Mapping[str, Script]] = MappingProxyType(
    {
        "docx": MappingProxyType({"create": _make_docx}),
        "pdf-reading": MappingProxyType({"text": _pdf_text}),
        "spreadsheet": MappingProxyType({"create": _make_sheet, "sum": _sum_sheet}),
        "web-search": MappingProxyType({"compare": _compare}),
        "voice-calling": MappingProxyType({"converse": _converse}),
        "video-from-video": MappingProxyType({"extend": _derive("extend"), "reverse": _derive("reverse")}),
        "reminders": MappingProxyType({"repeat": _repeat, "list": _list_reminders}),
        "platform-help": MappingProxyType({"lookup": _lookup}),
    }
)
"""Skill → script → code. Every script takes one text and returns one text."""

HELP_TEXT = "I handle files, web, images, calls, reminders and messages."
"""What ``platform-help`` says about the platform as a whole."""


def instructions(name: str) -> str:
    """What ``skill`` returns for a known skill."""
    scripts = ", ".join(SCRIPTS[name])
    about = f" {HELP_TEXT}" if name == "platform-help" else ""
    return f"{name} ready; scripts: {scripts}.{about}"
