"""The pages on traces and catalogs say what the program does: their commands parse, their YAML loads."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from firstchair.catalog.catalog import load_catalog
from firstchair.catalog.lint import lint_catalog
from firstchair.cli import catalog, traces
from firstchair.traces.importers import IMPORTERS

DOCS = Path(__file__).parents[2] / "docs"
APPS = {"traces": traces.app, "catalog": catalog.app}
COMMANDS = [
    shlex.split(line, comments=True)[1:]
    for page in ("traces.md", "catalog.md")
    for block in re.findall(r"```sh\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    for line in block.splitlines()
    if line.startswith("firstchair ")
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_of_the_pages_is_one_that_exists(command):
    group, name, *arguments = command
    typer.main.get_command(APPS[group]).commands[name].make_context(name, arguments)


def test_the_pages_show_commands():
    assert len(COMMANDS) > 10


def test_the_catalog_of_the_page_loads_and_is_sound(tmp_path):
    (block,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "catalog.md").read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "c.yaml"
    path.write_text(block, encoding="utf-8")
    assert [finding for finding in lint_catalog(load_catalog(path)) if finding.severity == "error"] == []


def test_every_format_is_on_the_page():
    text = (DOCS / "traces.md").read_text(encoding="utf-8")
    assert [name for name in IMPORTERS if f"| `{name}` |" not in text] == []
