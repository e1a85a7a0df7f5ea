"""A sandbox as YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstchair.core.config import Strict, validate
from firstchair.core.errors import ConfigError
from firstchair.sandbox.base import SandboxLimits
from firstchair.sandbox.container import ContainerSandbox
from firstchair.sandbox.process import ProcessSandbox
from firstchair.sandbox.spec import ProcessSpec, SandboxSpec, open_sandbox


class Recipe(Strict):
    sandbox: SandboxSpec = ProcessSpec()


def test_a_spec_opens_the_sandbox_of_its_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert isinstance(open_sandbox(Recipe().sandbox), ProcessSandbox)
    fields = {"sandbox": {"type": "container", "engine": "podman", "image": "x", "limits": {"wall_s": 3}}}
    recipe = validate(Recipe, fields, source="recipe")
    assert recipe.sandbox.limits == SandboxLimits(wall_s=3)
    (tmp_path / "podman").write_text("")
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert isinstance(open_sandbox(recipe.sandbox), ContainerSandbox)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"type": "vm"}, "tag 'vm' found"),
        ({"type": "container"}, "image: Field required"),
        ({"type": "process", "image": "x"}, "image: unknown field"),
        ({"type": "process", "limits": {"wall": 3}}, "limits.wall"),
        ({"type": "process", "limits": {"memory_mb": 0}}, "greater than or equal to 1"),
        ({"type": "process", "namespaces": "maybe"}, "'required', 'if_available' or 'off'"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, object], words: str):
    with pytest.raises(ConfigError) as error:
        validate(Recipe, {"sandbox": fields}, source="recipe")
    assert words in str(error.value)


def test_a_readable_path_is_absolute():
    with pytest.raises(ConfigError, match=r"sandbox\.readable: data: expected an absolute path"):
        open_sandbox(ProcessSpec(readable=(Path("data"),)))
