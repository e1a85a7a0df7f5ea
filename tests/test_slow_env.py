"""What the slow tests need is made by one target of the Makefile, and whoever lacks it is told so."""

from pathlib import Path

import pytest
from tests.services import REQUIRED

from firstchair.core.errors import RunFailed
from firstchair.testing.vllm_server import vllm_python

ROOT = Path(__file__).parents[1]


def test_without_vllm_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FIRSTCHAIR_VLLM_PYTHON", "/nowhere/bin/python")
    with pytest.raises(RunFailed, match="make slow-env"):
        vllm_python()


def test_the_target_makes_what_the_slow_tests_look_for():
    made = (ROOT / "Makefile").read_text(encoding="utf-8")
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert "\nslow-env: $(VLLM)/.ready $(SMOLLM)/config.json" in made
    assert "\nVLLM := .venv-vllm\n" in made
    assert "\nSMOLLM := .slow/smollm2-135m\n" in made
    assert {".venv-*/", "/.slow/"} <= set(ignored)


def test_only_a_missing_service_skips_a_test_and_ci_lets_none_be_missing():
    for path in (ROOT / "tests").rglob("*.py"):
        if path.name not in (Path(__file__).name, "services.py"):
            text = path.read_text(encoding="utf-8")
            assert "pytest.skip(" not in text, path
            assert "importorskip" not in text, path
    assert f"export {REQUIRED}=required\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
