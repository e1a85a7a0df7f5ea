"""Examples as modules, and the command line in this process: torch is imported once."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from firstchair.cli.main import main as firstchair


def load_example(name: str) -> ModuleType:
    """``examples/<name>/run.py``."""
    path = Path(__file__).parents[2] / "examples" / name / "run.py"
    spec = importlib.util.spec_from_file_location(f"{name}_run", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[str]], int]:
    def call(arguments: Sequence[str]) -> int:
        monkeypatch.setattr(sys, "argv", ["firstchair", *arguments])
        with pytest.raises(SystemExit) as done:
            firstchair()
        return int(done.value.code or 0)

    return call
