"""The pages are executed: the tutorial runs as written, commands parse, links resolve, Python runs."""

import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
import yaml

from firstchair.cli.demo_run import next_commands
from firstchair.cli.main import COMMANDS
from firstchair.rollout.desk.server import running_teacher

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(DOCS.glob("*.md")),
    *sorted(ROOT.glob("examples/*/*.md")),
]
TUTORIAL = DOCS / "tutorial.md"

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:^ {4}firstchair .*\n)+", re.MULTILINE)
INLINE = re.compile(r"`(?:\$ )?(firstchair [^`]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"")
PATH = re.compile(r"`((?:src|tests|docs|bench|examples|recipes|deploy)/[\w./-]+)`")
DOTTED = re.compile(r"`(firstchair(?:\.\w+)+)")
END_OF_COMMAND = {"|", "||", "&&", ";", ">", ">>", "&"}
TEACHER = "http://127.0.0.1:8100"
"""Where the pages say that `firstchair desk serve` listens."""
GATEWAY = "http://127.0.0.1:8400"
"""Where they say that the gateway does; blocks that call it run in ``test_gateway_pages.py``."""


class Shown(NamedTuple):
    """A command line that a page shows."""

    where: str
    words: list[str]
    whole: bool
    """Whether it can be run as it stands; a command named in a sentence may leave options out."""


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def blocks(path: Path, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(text_of(path)) if language in languages]


def commands_in(shell: str) -> Iterator[list[str]]:
    """Command lines of a shell block; here-documents are not shell."""
    shell = re.sub(r"<<'?(\w+)'?\n.*?^\1$", "", shell, flags=re.DOTALL | re.MULTILINE)
    for line in shell.replace("\\\n", " ").splitlines():
        found = re.search(r"(?:^|[(|&;]\s*|\$ )firstchair (.*)", line.strip())
        if found is None:
            continue
        lexer = shlex.shlex(found[1].replace("$(", "("), posix=True, punctuation_chars="|&;><()")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in lexer:
            if word in END_OF_COMMAND or word == ")":
                break
            words.append(word)
        yield words


def shown_commands() -> Iterator[Shown]:
    for page in PAGES:
        for shell in (*blocks(page, "sh"), *INDENTED.findall(text_of(page))):
            yield from (Shown(named(page), words, True) for words in commands_in(shell))
        prose = FENCE.sub("", text_of(page))
        if page.name != "cli.md":  # its headings and usage lines come from the commands
            yield from (Shown(named(page), shlex.split(inline)[1:], False) for inline in INLINE.findall(prose))
    for recipe in sorted(ROOT.glob("recipes/*.yaml")) + sorted(ROOT.glob("examples/*/*.yaml")):
        comments = "\n".join(line[2:] for line in text_of(recipe).splitlines() if line.startswith("# firstchair "))
        yield from (Shown(named(recipe), words, True) for words in commands_in(comments))
    lines = "\n".join(next_commands(Path("my runs/demo")))
    yield from (Shown("the end of the demo", words, True) for words in commands_in(lines))


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that ``words`` call, and what is left for it."""
    name, *rest = words
    command: Any = typer.main.get_command(importlib.import_module(COMMANDS[name][0]).app)
    while rest and rest[0] in getattr(command, "commands", {}):
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


SHOWN = sorted({(shown.where, tuple(shown.words), shown.whole) for shown in shown_commands()})


@pytest.mark.parametrize(
    ("where", "words", "whole"), SHOWN, ids=[f"{where}: {' '.join(words)}" for where, words, _ in SHOWN]
)
def test_a_command_that_a_page_shows_is_one_that_exists(where: str, words: tuple[str, ...], whole: bool):
    if words in {("--help",), ("--version",)}:
        return
    assert words[0] in COMMANDS, f"{where}: firstchair {shlex.join(words)}: no command {words[0]!r}"
    command, rest = command_of(list(words))
    if whole:
        assert not getattr(command, "commands", None), f"{where}: firstchair {shlex.join(words)}: no such sub-command"
        command.make_context(words[0], rest)
        return
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    unknown = [word for word in rest if word.startswith("--") and word.split("=")[0] not in {*options, "--help"}]
    assert not unknown, f"{where}: firstchair {shlex.join(words)}: no option {unknown}"
    if getattr(command, "commands", None):
        alternatives = set(rest[0].split("|")) if rest else set()
        assert alternatives <= set(command.commands), f"{where}: firstchair {shlex.join(words)}: no such sub-command"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_block_of_a_page_says_what_it_holds(page: Path):
    assert {language for language, _ in FENCE.findall(text_of(page))} <= {"sh", "python", "yaml", "json", "text"}


def test_the_pages_show_commands():
    assert len(SHOWN) > 50


def anchors(page: Path) -> set[str]:
    """GitHub's anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text_of(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_relative_link_of_a_page_leads_somewhere(page: Path):
    broken = []
    for found in LINK.findall(FENCE.sub("", text_of(page))):
        target, _, anchor = (found[0] or found[1]).partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(found[0] or found[1])
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_file_and_module_that_a_page_names_exists(page: Path):
    text = text_of(page)
    missing = [path for path in PATH.findall(text) if not (ROOT / path).exists()]
    missing += [name for name in DOTTED.findall(text) if not exists(name)]
    assert not missing


def exists(name: str) -> bool:
    """Whether ``name`` is a module of ours or something in one."""
    module, _, rest = name, "", ""
    while True:
        try:
            found: Any = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            rest = f"{last}.{rest}".strip(".")
    return not rest or hasattr(found, rest.split(".")[0])


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "yaml")], ids=named)
def test_yaml_of_a_page_is_yaml(page: Path):
    for block in blocks(page, "yaml"):
        assert isinstance(yaml.safe_load(block), dict)


def test_every_page_is_on_the_map():
    linked = {found[0] for found in LINK.findall(text_of(DOCS / "index.md"))}
    assert {page.name for page in DOCS.glob("*.md")} - {"index.md"} <= linked


def environment() -> dict[str, str]:
    """For scripts: this interpreter's commands first, and a store of no one else."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FIRSTCHAIR_")}
    return {**clean, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def run_python(block: str, directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=directory, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, f"{block}\n{done.stderr}"


PYTHON = [(named(page), block) for page in PAGES for block in blocks(page, "python") if GATEWAY not in block]
NEEDS_FILES = ('"golden"', '"traces.db"', '"sft.yaml"')
"""Blocks with these read what the tutorial writes; they run in its directory."""


@pytest.mark.timeout(1200)  # about a minute on a free core; machines are not always free
def test_the_tutorial_runs_as_written_and_python_blocks_read_its_files(tmp_path: Path):
    script = tmp_path / "tutorial.sh"
    script.write_text("\n".join(blocks(TUTORIAL, "sh")), encoding="utf-8")
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        ["bash", "-euo", "pipefail", str(script)], cwd=work, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert (work / "report.html").stat().st_size > 0
    reading = [block for _, block in PYTHON if any(name in block for name in NEEDS_FILES)]
    assert reading
    for block in reading:
        run_python(block, work)


@pytest.mark.parametrize(
    ("where", "block"),
    [(where, block) for where, block in PYTHON if not any(name in block for name in NEEDS_FILES)],
    ids=lambda value: value if "\n" not in value else "",
)
def test_python_of_a_page_runs(where: str, block: str, tmp_path: Path):
    if TEACHER not in block:
        run_python(block, tmp_path)
        return
    with running_teacher() as server:
        run_python(block.replace(TEACHER, server.openai_url.removesuffix("/v1")), tmp_path)
