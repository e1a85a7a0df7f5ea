"""Write the command reference, ``docs/cli.md``, from the commands themselves.

    python docs/generate_cli.py

A test fails when the page is stale. Nothing is read but public attributes of Typer's commands and the type hints of
the functions behind them.
"""

from __future__ import annotations

import enum
import inspect
import types
import typing
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from firstchair.cli.main import COMMANDS
from firstchair.core.atomic import write_text

PAGE = Path(__file__).parent / "cli.md"

HEAD = """\
# Commands

<!-- Written by docs/generate_cli.py; change the commands, then run it again. -->

Every command has `--help`. Exit codes: 0 success, 1 a run that failed or was interrupted (Ctrl-C) or a check that
found something, 2 wrong usage or input. Results go to standard output, progress and errors to standard error.
`--json` prints results for a machine.
"""

TYPE_NAMES = {str: "text", int: "number", float: "number", Path: "path", bool: ""}


def page() -> str:
    """The whole page as Markdown."""
    found = list(commands())
    toc = "\n".join(f"- [`{name}`](#{anchor(name)}): {summary(command)}" for name, command in found)
    return "\n".join([HEAD, toc + "\n", *(section(name, command) for name, command in found)])


def commands() -> Iterator[tuple[str, Any]]:
    """Full name and command, groups left out, in the order of ``--help``."""
    for name, (module, _) in COMMANDS.items():
        yield from below(f"firstchair {name}", typer.main.get_command(import_module(module).app))


def below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """``command`` itself, or what a group holds."""
    members = getattr(command, "commands", None)
    if members is None:
        yield name, command
        return
    for word, member in members.items():
        yield from below(f"{name} {word}", member)


def anchor(title: str) -> str:
    """GitHub's anchor of a heading."""
    return title.lower().replace(" ", "-")


def text_of(command: Any) -> str:
    """What a command says about itself."""
    return inspect.cleandoc(command.help or "")


def summary(command: Any) -> str:
    """The first paragraph, on one line."""
    return " ".join(text_of(command).split("\n\n")[0].split())


def section(name: str, command: Any) -> str:
    """Heading, usage, description, and a table of what can be given."""
    hints = typing.get_type_hints(command.callback)
    # What Typer adds of its own (completion of a command run alone) is no parameter of the function.
    shown = [parameter for parameter in command.params if parameter.name in hints and not parameter.hidden]
    given = [parameter for parameter in shown if is_argument(parameter)]
    options = [parameter for parameter in shown if not is_argument(parameter)]
    usage = [name, *(placeholder(parameter) for parameter in given)]
    usage += [
        f"{parameter.opts[0]} {value_of(parameter, hints)}".strip() for parameter in options if parameter.required
    ]
    if any(not parameter.required for parameter in options):
        usage.append("[OPTIONS]")
    lines = [f"## {name}", "", "```text", " ".join(usage), "```", "", text_of(command), ""]
    if shown:
        lines += ["| | default | |", "| --- | --- | --- |"]
        lines += [row(parameter, hints) for parameter in (*given, *options)]
    return "\n".join(lines).rstrip("\n") + "\n"


def is_argument(parameter: Any) -> bool:
    """Whether it is given by place, not by name."""
    return not parameter.opts[0].startswith("-")


def placeholder(parameter: Any) -> str:
    """An argument in the usage line."""
    name = (parameter.metavar or parameter.name.upper()).strip("[]")
    name += "..." if parameter.nargs == -1 else ""
    return name if parameter.required else f"[{name}]"


def row(parameter: Any, hints: dict[str, Any]) -> str:
    """One line of the table."""
    if is_argument(parameter):
        what = f"`{placeholder(parameter)}`"
    else:
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        value = value_of(parameter, hints)
        what = f"{names} {value}".strip()
    return f"| {cell(what)} | {cell(default_of(parameter))} | {cell(help_of(parameter))} |"


def value_of(parameter: Any, hints: dict[str, Any]) -> str:
    """What an option takes: a name for it, or the values to choose from."""
    if parameter.metavar:
        return str(parameter.metavar)
    hint = bare(hints[parameter.name])
    if typing.get_origin(hint) is typing.Literal:
        return "|".join(str(value) for value in typing.get_args(hint))
    if inspect.isclass(hint) and issubclass(hint, enum.Enum):
        return "|".join(str(member.value) for member in hint)
    return TYPE_NAMES[hint]


def bare(hint: Any) -> Any:
    """A type hint without ``Optional`` and ``list``."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
        return bare(hint)
    return bare(typing.get_args(hint)[0]) if typing.get_origin(hint) is list else hint


def default_of(parameter: Any) -> str:
    """The default as it would be typed; empty where there is none worth showing."""
    value = parameter.default
    if parameter.required:
        return "required"
    if value is None or value is False or value == "" or value == []:
        return ""
    if value is True:
        return f"`{parameter.opts[0]}`"
    return f"`{value.value if isinstance(value, enum.Enum) else value}`"


def help_of(parameter: Any) -> str:
    """Help, and the environment variable that also sets it."""
    text = " ".join((parameter.help or "").split())
    return f"{text} Environment: `{parameter.envvar}`." if parameter.envvar else text


def cell(text: str) -> str:
    """Text inside a table."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    write_text(PAGE, page(), force=True)
