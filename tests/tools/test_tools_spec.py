import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from firstchair.catalog.experts import ExpertCatalog
from firstchair.chat.messages import ToolCall
from firstchair.chat.schema_check import schema_problem
from firstchair.cli.tools import app
from firstchair.core.config import load_recipe, validate
from firstchair.core.errors import ConfigError, FirstchairError
from firstchair.tools.base import RealTool
from firstchair.tools.search_index import build_index
from firstchair.tools.spec import ToolsSpec, open_tools


@pytest.fixture
def everything(tmp_path: Path) -> Path:
    """A file with every tool, and what they need."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("The lighthouse opens at nine.\n")
    build_index(tmp_path / "docs", tmp_path / "index")
    (tmp_path / "shop.db").touch()
    spec = tmp_path / "tools.yaml"
    spec.write_text(
        f"work_dir: {tmp_path / 'work'}\n"
        "tools:\n"
        + "".join(
            f"  - type: {name}\n"
            for name in (
                "calculator",
                "think",
                "file_read",
                "file_write",
                "apply_patch",
                "pdf_extract",
                "http_request",
                "code_interpreter",
                "shell_exec",
            )
        )
        + f"  - {{type: db_query, url: 'sqlite:///{tmp_path / 'shop.db'}'}}\n"
        f"  - {{type: web_search, backend: {{type: local, index: {tmp_path / 'index'}}}}}\n"
    )
    return spec


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, FirstchairError):
        raise result.exception
    return result


def test_every_tool_opens_with_a_schema_that_is_one(everything: Path):
    async def opened() -> None:
        async with open_tools(load_recipe(ToolsSpec, everything)) as box:
            assert [tool.name for tool in box.tools] == [one.type for one in load_recipe(ToolsSpec, everything).tools]
            assert len({tool.name for tool in box.tools}) == 11
            assert [schema_problem(tool.parameters) for tool in box.tools] == [None] * 11
            assert all(tool.parameters["additionalProperties"] is False for tool in box.tools)
            assert all(isinstance(one, RealTool) for _, one in box._tools.values())

    asyncio.run(opened())


def test_the_catalog_names_the_tools_as_they_are_and_no_argument_that_they_do_not_take(everything: Path):
    async def opened() -> None:
        async with open_tools(load_recipe(ToolsSpec, everything)) as box:
            real = {tool.name: tool.parameters for tool in box.tools}
        listed = {tool.name: tool.schema_of_kind for tool in ExpertCatalog.load().tools}
        assert listed.keys() == real.keys()
        for name, schema in listed.items():
            assert schema["required"] == real[name]["required"], name
            assert schema["properties"].keys() <= real[name]["properties"].keys(), name
        methods = [schemas["http_request"]["properties"]["method"]["enum"] for schemas in (listed, real)]
        assert methods[0] == methods[1]

    asyncio.run(opened())


def test_files_and_programs_share_a_directory(everything: Path):
    asked: tuple[tuple[str, dict[str, Any]], ...] = (
        ("file_write", {"path": "n.txt", "content": "6"}),
        ("code_interpreter", {"code": "n = int(open('n.txt').read()); open('m.txt', 'w').write(str(7 * n))"}),
        ("shell_exec", {"command": "mkdir sub && mv m.txt sub"}),
        ("file_read", {"path": "sub/m.txt"}),
    )

    async def worked() -> str:
        async with open_tools(load_recipe(ToolsSpec, everything)) as box:
            answers = [await box.call(ToolCall.of("1", name, arguments)) for name, arguments in asked]
        assert not any(answer.is_error for answer in answers), answers
        return answers[-1].text

    assert asyncio.run(worked()) == "42"


def test_each_episode_can_have_a_work_dir_of_its_own(everything: Path, tmp_path: Path):
    async def written(place: Path) -> None:
        async with open_tools(load_recipe(ToolsSpec, everything), work_dir=place) as box:
            call = ToolCall.of("1", "file_write", {"path": "x.txt", "content": place.name})
            assert not (await box.call(call)).is_error

    for name in ("one", "two"):
        asyncio.run(written(tmp_path / name))
        assert (tmp_path / name / "x.txt").read_text() == name


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": []}, "tools is empty; name one"),
        ({"tools": [{"type": "think"}, {"type": "think"}]}, "think stands twice in tools"),
        ({"tools": [{"type": "file_read"}]}, "work_dir is needed by file_read"),
        ({"tools": [{"type": "thinks"}]}, "'thinks' found using 'type' does not match any"),
        ({"tools": [{"type": "think", "loud": True}]}, "loud: unknown field"),
        ({"tools": [{"type": "web_search"}]}, "backend"),
    ],
)
def test_a_file_that_cannot_be_is_explained(fields: dict[str, Any], words: str):
    with pytest.raises(ConfigError) as raised:
        validate(ToolsSpec, fields, source="tools.yaml")
    assert words in str(raised.value).replace("Input tag ", "")


def test_the_command_lists_tools_and_their_schemas(everything: Path):
    shown = run("ls", everything).stdout
    assert "calculator" in shown
    assert "expression: string" in shown
    listed = json.loads(run("ls", everything, "--json").stdout)
    assert listed[0]["name"] == "calculator"
    assert listed[0]["parameters"]["required"] == ["expression"]


def test_the_command_calls_one_by_hand(everything: Path):
    found = run("call", everything, "calculator", '{"expression": "6 * 7"}')
    assert (found.exit_code, found.stdout) == (0, "42\n")
    failed = run("call", everything, "calculater")
    assert failed.exit_code == 1
    assert "did you mean calculator?" in failed.stderr
    assert "lighthouse" in run("call", everything, "web_search", '{"query": "lighthouse"}').stdout


def test_the_command_indexes_a_folder_and_updates_the_index(tmp_path: Path):
    folder, out = tmp_path / "docs", tmp_path / "index"
    folder.mkdir()
    (folder / "a.md").write_text("fish")
    (folder / ".b").write_text("fish")
    first = run("index", folder, out).stdout
    assert first == f"1 passage of 1 file written to {out} (0 taken from the old index)\nleft out, hidden: 1 file\n"
    with pytest.raises(ConfigError, match="pass --force"):
        run("index", folder, out)
    assert "(1 taken from the old index)" in run("index", folder, out, "--force", "--include", "*.md").stdout
