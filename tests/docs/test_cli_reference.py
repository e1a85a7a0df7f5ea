"""The command reference is what the commands say."""

import importlib.util
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"


def generator() -> Any:
    spec = importlib.util.spec_from_file_location("generate_cli", DOCS / "generate_cli.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_reference_is_up_to_date():
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == generator().page(), (
        "docs/cli.md is stale; run: python docs/generate_cli.py"
    )


def test_every_command_is_in_the_reference():
    names = [name for name, _ in generator().commands()]
    assert len(names) > 30
    assert all(name.startswith("firstchair ") for name in names)
