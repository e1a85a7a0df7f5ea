"""A safe, simulated shell over the session's file tree. It never touches the machine it runs on."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Callable, Mapping
from types import MappingProxyType

from firstchair.rollout.desk.filetree import BINARY, is_folder, normalize
from firstchair.rollout.desk.world import World


class ShellError(ValueError):
    """A command that failed; the text is what the shell prints."""


def run(world: World, command: str) -> str:
    """Run one command and return what it prints. Raises ``ShellError``."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ShellError(f"syntax: {error}") from None
    if not words:
        raise ShellError("empty command")
    target, append = None, False
    if len(words) > 2 and words[-2] in (">", ">>"):
        append, target = words[-2] == ">>", words[-1]
        words = words[:-2]
    name, arguments = words[0], words[1:]
    if name not in COMMANDS:
        raise ShellError(f"{name}: command not found")
    try:
        output = COMMANDS[name](world, arguments)
        if target is None:
            return output
        path = _writable(world, target)
    except ValueError as error:
        raise ShellError(f"{name}: {error}") from None
    world.files[path] = (world.files.get(path, "") + "\n" if append and path in world.files else "") + output
    return ""


def _operands(arguments: list[str], least: int, most: int | None = None) -> list[str]:
    names = [word for word in arguments if not word.startswith("-") or word == "-"]
    if len(names) < least or (most is not None and len(names) > most):
        raise ValueError(f"found {len(names)} operands")
    return names


def _text(world: World, name: str) -> str:
    path, tree = normalize(name), world.tree()
    if path not in tree:
        raise ValueError(f"{name}: no such file")
    if path.endswith(BINARY):
        raise ValueError(f"{name}: binary file")
    return tree[path]


def _writable(world: World, name: str) -> str:
    path = normalize(name)
    if not path or path in world.records():
        raise ValueError(f"{name}: read-only")
    if is_folder(world.files, path):
        raise ValueError(f"{name}: is a folder")
    return path


def _ls(world: World, arguments: list[str]) -> str:
    folder = normalize(next(iter(_operands(arguments, 0, 1)), ""))
    tree = world.tree()
    if folder in tree:
        return folder
    names = set()
    for path in [*tree, *(f"{made}/" for made in world.folders)]:
        if not folder or path.startswith(folder + "/"):
            rest = path[len(folder) + 1 if folder else 0 :]
            head, slash, _ = rest.partition("/")
            if head:
                names.add(head + slash)
    if not names and folder not in world.folders:
        raise ValueError(f"{folder}: no such file")
    return " ".join(sorted(names))


def _cat(world: World, arguments: list[str]) -> str:
    return "\n".join(_text(world, name) for name in _operands(arguments, 1))


def _mkdir(world: World, arguments: list[str]) -> str:
    for name in _operands(arguments, 1):
        path = normalize(name)
        if path in world.folders or path in world.tree() or is_folder(world.tree(), path):
            raise ValueError(f"{name}: exists")
        world.folders.add(path)
    return ""


def _rm(world: World, arguments: list[str]) -> str:
    recursive = any(word in ("-r", "-rf", "-fr") for word in arguments)
    for name in _operands(arguments, 1):
        path = normalize(name)
        if path in world.files:
            del world.files[path]
        elif path and recursive and (path in world.folders or is_folder(world.files, path)):
            for other in [other for other in world.files if other.startswith(path + "/")]:
                del world.files[other]
            world.folders = {made for made in world.folders if made != path and not made.startswith(path + "/")}
        elif path in world.records():
            raise ValueError(f"{name}: read-only")
        else:
            raise ValueError(f"{name}: no such file")
    return ""


def _transfer(world: World, arguments: list[str], *, move: bool) -> str:
    source_name, target_name = _operands(arguments, 2, 2)
    source = normalize(source_name)
    if source not in (world.files if move else world.tree()):
        raise ValueError(f"{source_name}: no such file")
    target = normalize(target_name)
    if target_name.endswith("/") or target in world.folders or is_folder(world.files, target):
        target = normalize(f"{target}/{posixpath.basename(source)}")
    target = _writable(world, target)
    text = world.tree()[source]
    if move:
        del world.files[source]
        made = world.artifacts.pop(source, None)
        if made is not None:
            world.artifacts[target] = made
    world.files[target] = text
    return ""


def _mv(world: World, arguments: list[str]) -> str:
    return _transfer(world, arguments, move=True)


def _cp(world: World, arguments: list[str]) -> str:
    return _transfer(world, arguments, move=False)


def _wc(world: World, arguments: list[str]) -> str:
    name = _operands(arguments, 1, 1)[0]
    text = _text(world, name)
    counts = {"-l": len(text.split("\n")) if text else 0, "-w": len(text.split()), "-c": len(text)}
    flags = [word for word in arguments if word in counts] or list(counts)
    return " ".join([*(str(counts[flag]) for flag in flags), name])


def _part(world: World, arguments: list[str], *, head: bool) -> str:
    count, rest = 10, list(arguments)
    if "-n" in rest:
        place = rest.index("-n")
        if place + 1 >= len(rest) or not rest[place + 1].isdecimal():
            raise ValueError("-n needs a number")
        count = int(rest[place + 1][:9])
        del rest[place : place + 2]
    lines = _text(world, _operands(rest, 1, 1)[0]).split("\n")
    return "\n".join(lines[:count] if head else lines[max(0, len(lines) - count) :])


def _head(world: World, arguments: list[str]) -> str:
    return _part(world, arguments, head=True)


def _tail(world: World, arguments: list[str]) -> str:
    return _part(world, arguments, head=False)


def _echo(world: World, arguments: list[str]) -> str:
    return " ".join(arguments)


def _pwd(world: World, arguments: list[str]) -> str:
    return "/"


def _date(world: World, arguments: list[str]) -> str:
    return f"{world.date} {world.clock}"


COMMANDS: Mapping[str, Callable[[World, list[str]], str]] = MappingProxyType(
    {
        "ls": _ls,
        "cat": _cat,
        "mkdir": _mkdir,
        "rm": _rm,
        "mv": _mv,
        "cp": _cp,
        "wc": _wc,
        "head": _head,
        "tail": _tail,
        "echo": _echo,
        "pwd": _pwd,
        "date": _date,
    }
)
"""Every command the shell knows. There is no ``find`` and no ``grep``: the platform has tools for these."""
