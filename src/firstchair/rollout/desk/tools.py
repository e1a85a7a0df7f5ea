"""The desk's 21 tools as code over a world. A failed call is a ``Result`` whose text begins with ``error:``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from firstchair.rollout.desk import shell
from firstchair.rollout.desk.filetree import BINARY, glob, grep, is_folder, normalize
from firstchair.rollout.desk.skills import SCRIPTS, ScriptError, instructions, made_path
from firstchair.rollout.desk.world import Event, PhoneCall, Reminder, Sent, World

_TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d")
_DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")
_PHONE = re.compile(r"\d{3}-\d{4}")
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(\.[\w-]+)+")


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool returns."""

    text: str
    is_error: bool = False


def failure(reason: str) -> Result:
    """A failed call; the reader sees ``error: reason``."""
    return Result(f"error: {reason}", is_error=True)


def _large(world: World, text: str) -> Result:
    return Result(world.shorten(text))


def _web_fetch(world: World, *, url: str) -> Result:
    page = world.web.pages.get(url)
    return failure(f"404, no page at {url}") if page is None else _large(world, page.text)


def _web_search(world: World, *, query: str) -> Result:
    pages = world.web.find(query)
    if not pages:
        return failure("no results")
    page, terms = pages[0], query.lower().split()
    facts = [fact for fact in page.facts if fact[0] in terms] or [page.facts[0]]
    return _large(world, f"{page.url} " + " ".join(f"{key}: {value}." for key, value in facts))


def _bash(world: World, *, command: str) -> Result:
    try:
        return _large(world, shell.run(world, command) or "ok")
    except shell.ShellError as error:
        return failure(str(error))


def _read(world: World, *, path: str) -> Result:
    clean, tree = normalize(path), world.tree()
    if clean not in tree:
        return failure(f"{path} is a folder" if is_folder(tree, clean) else f"no such file: {path}")
    if clean.endswith(BINARY):
        return failure(f"binary file: {path}")
    return _large(world, tree[clean])


def _write(world: World, *, path: str, content: str) -> Result:
    clean = normalize(path)
    if not clean or clean in world.records():
        return failure(f"read-only: {path}")
    if is_folder(world.files, clean):
        return failure(f"{path} is a folder")
    world.files[clean] = content
    return Result(f"wrote {path}")


def _edit(world: World, *, path: str, old: str, new: str) -> Result:
    clean = normalize(path)
    if clean in world.records():
        return failure(f"read-only: {path}")
    if clean not in world.files:
        return failure(f"no such file: {path}")
    if not old or old not in world.files[clean]:
        return failure(f"text not found in {path}")
    world.files[clean] = world.files[clean].replace(old, new, 1)
    return Result(f"edited {path}")


def _glob(world: World, *, pattern: str) -> Result:
    found = glob(world.tree(), pattern)
    return _large(world, "\n".join(found)) if found else failure(f"no file matches {pattern}")


def _grep(world: World, *, pattern: str, path: str) -> Result:
    folder, tree = normalize("" if path == "." else path), world.tree()
    if folder not in tree and not is_folder(tree, folder):
        return failure(f"no such file: {path}")
    found = grep(tree, pattern, folder)
    if not found:
        return failure(f"no match for {pattern}")
    return _large(world, "\n".join(f"{name}: {line}" for name, line in found))


def _share(world: World, *, path: str) -> Result:
    clean = normalize(path)
    if clean not in world.files:
        return failure(f"no such file: {path}")
    world.shared.append(clean)
    return Result(f"shared {path}")


def _image(world: World, *, prompt: str) -> Result:
    path = world.add_artifact(made_path("images", prompt, "png"), "image", prompt, f"image: {prompt}")
    return Result(f"saved {path}")


def _video(world: World, *, prompt: str) -> Result:
    path = world.add_artifact(made_path("videos", prompt, "mp4"), "video", prompt, f"video: {prompt}")
    return Result(f"saved {path}")


def _set_reminder(world: World, *, text: str, time: str) -> Result:
    if not _TIME.fullmatch(time):
        return failure(f"bad argument: time {time}")
    world.reminders.append(Reminder(text, time))
    return Result(f"reminder set for {time}")


def _phone_call(world: World, *, number: str, message: str) -> Result:
    if not _PHONE.fullmatch(number):
        return failure(f"bad argument: number {number}")
    world.phone_calls.append(PhoneCall(number=number, message=message))
    return Result(f"delivered to {number}")


def _memory(world: World, *, content: str) -> Result:
    if not content.strip():
        return failure("bad argument: empty content")
    # A fact of the form "my X is Y" takes the place of what was known about X before.
    subject = content.partition(" is ")[0] + " is "
    if " is " in content:
        world.memory = [fact for fact in world.memory if not fact.startswith(subject)]
    world.memory.append(content)
    return Result("memory updated")


def _agent(world: World, *, task: str) -> Result:
    pages = world.web.find(task)
    text = f"report: {task}. " + " ".join(page.text for page in pages[:2])
    return Result(f"saved {world.add_artifact(made_path('research', task, 'md'), 'report', task, text.strip())}")


def _load_result(world: World, *, result_id: str) -> Result:
    rest = world.cache.get(result_id)
    return failure(f"no such result: {result_id}") if rest is None else Result(rest)


def _skill(world: World, *, name: str) -> Result:
    if name not in SCRIPTS:
        return failure(f"no such skill: {name}")
    world.loaded_skills.add(name)
    return Result(instructions(name))


def _skill_script(world: World, *, skill: str, script: str, input: str) -> Result:
    if skill not in SCRIPTS:
        return failure(f"no such skill: {skill}")
    if skill not in world.loaded_skills:
        return failure(f"skill not loaded: {skill}")
    if script not in SCRIPTS[skill]:
        return failure(f"no such script: {script}")
    try:
        return _large(world, SCRIPTS[skill][script](world, input))
    except ScriptError as error:
        return failure(str(error))


def _calendar_event(world: World, *, title: str, date: str, start: str, end: str) -> Result:
    if not _DATE.fullmatch(date):
        return failure(f"bad argument: date {date}")
    if not (_TIME.fullmatch(start) and _TIME.fullmatch(end) and start < end):
        return failure(f"bad argument: time {start}-{end}")
    for other in world.events:
        if other.date == date and other.start < end and start < other.end:
            return failure(f"clash with {other.title}")
    world.events.append(Event(title, date, start, end))
    return Result(f"booked on {date}")


def _send_message(world: World, *, to: str, body: str) -> Result:
    if not _EMAIL.fullmatch(to):
        return failure(f"bad argument: to {to}")
    world.sent.append(Sent(to, body))
    return Result(f"sent to {to}")


TOOLS: Mapping[str, Callable[..., Result]] = MappingProxyType(
    {
        "WebFetch": _web_fetch,
        "web_search": _web_search,
        "Bash": _bash,
        "Read": _read,
        "Write": _write,
        "Edit": _edit,
        "Glob": _glob,
        "Grep": _grep,
        "ShareFile": _share,
        "ImageGenerator": _image,
        "VideoGenerator": _video,
        "SetReminder": _set_reminder,
        "phone_call": _phone_call,
        "MemoryRewrite": _memory,
        "Agent": _agent,
        "tool_result_load": _load_result,
        "skill": _skill,
        "skill_script": _skill_script,
        "calendar_event": _calendar_event,
        "send_message": _send_message,
    }
)
"""Tool → code. ``AskUser`` is answered by the simulated user, in the environment."""


def execute(world: World, name: str, arguments: Mapping[str, str]) -> Result:
    """Run one call whose arguments fit the tool's schema; every call takes a minute of the desk's clock."""
    world.minutes += 1
    try:
        return TOOLS[name](world, **arguments)
    except ValueError as error:  # a path that leaves the workspace
        return failure(f"bad argument: {error}")
