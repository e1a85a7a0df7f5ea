"""Tools of many rollouts: what can be shared is, and each works in a directory of its own that is gone afterwards."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import psutil
import pytest

from firstchair.chat.messages import ToolCall
from firstchair.core.config import validate
from firstchair.core.errors import ConfigError
from firstchair.rollout.orchestration.rollout_tools import RolloutTools, SharedTools
from firstchair.tools.spec import ToolsSpec


def test_each_rollout_works_in_a_copy_of_its_own_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    material, temp = tmp_path / "material", tmp_path / "temp"
    material.mkdir()
    temp.mkdir()
    (material / "hint.txt").write_text("two")
    monkeypatch.setattr(tempfile, "tempdir", str(temp))
    tools = [{"type": "file_write"}, {"type": "calculator"}, {"type": "file_read"}]
    spec = validate(ToolsSpec, {"work_dir": str(material), "tools": tools}, source="here")

    async def text(toolset: RolloutTools, name: str, **arguments: str) -> str:
        return (await toolset.call(ToolCall.of("c", name, arguments))).text

    async def run() -> None:
        shared = await SharedTools.open(spec)
        assert [tool.name for tool in shared.tools] == ["file_write", "calculator", "file_read"]
        first, second, idle = shared.of_rollout(), shared.of_rollout(), shared.of_rollout()
        assert await text(first, "calculator", expression="1 + 1") == "2"
        assert list(temp.iterdir()) == []  # no directory before it is needed
        await text(first, "file_write", path="hint.txt", content="three")
        assert await text(first, "file_read", path="hint.txt") == "three"
        assert await text(second, "file_read", path="hint.txt") == "two"
        assert len(list(temp.iterdir())) == 2
        for toolset in (first, idle):
            await toolset.close()
        # The shared ones are open still.
        assert await text(second, "calculator", expression="2 + 1") == "3"
        assert "no tool" in await text(second, "nothing")
        await second.close()
        await shared.close()

    asyncio.run(run())
    assert list(temp.iterdir()) == []
    assert (material / "hint.txt").read_text() == "two"


def test_a_work_dir_that_is_not_there_is_told_before_any_rollout(tmp_path: Path) -> None:
    spec = validate(ToolsSpec, {"work_dir": str(tmp_path / "typo"), "tools": [{"type": "file_read"}]}, source="here")
    with pytest.raises(ConfigError, match=r"tools\.work_dir: .*typo: no such directory"):
        asyncio.run(SharedTools.open(spec))


def test_code_of_all_rollouts_runs_in_one_sandbox_and_each_in_its_own_directory(tmp_path: Path) -> None:
    spec = validate(
        ToolsSpec,
        {
            "work_dir": str(tmp_path),
            "sandbox": {"type": "process", "namespaces": "if_available"},
            "tools": [{"type": "code_interpreter"}],
        },
        source="here",
    )

    async def run() -> list[str]:
        before = len(psutil.Process().children())
        shared = await SharedTools.open(spec)
        both = [shared.of_rollout(), shared.of_rollout()]
        code = "from pathlib import Path; Path('x').open('a').write('1'); print(Path('x').read_text())"
        calls = [one.call(ToolCall.of("c", "code_interpreter", {"code": code})) for one in both]
        texts = [message.text for message in await asyncio.gather(*calls)]
        assert len(psutil.Process().children()) - before <= 1  # what starts the programs of all
        for one in both:
            await one.close()
        await shared.close()
        return texts

    assert [text.strip() for text in asyncio.run(run())] == ["1", "1"]
