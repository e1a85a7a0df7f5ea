"""``precision: auto``: bfloat16 where the machine multiplies it in hardware, and a word where it does not."""

from __future__ import annotations

import json

import pytest
import torch

from firstchair.core.config import load_recipe
from firstchair.core.errors import ConfigError
from firstchair.train.config import SftRecipe
from firstchair.train.precision import multiplies_bf16, precision_advice, settled
from firstchair.train.sft import train_sft

CPU = torch.device("cpu")
NEEDED = ["model=m", "out=o", "data.train=t.jsonl", "device=cpu"]
MACHINES = [({"avx2": True, "avx512_bf16": False}, False), ({"avx512_bf16": True}, True), ({"bf16": True}, True)]


def on_machine(monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool]) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)


@pytest.mark.parametrize(("capabilities", "has"), MACHINES)
def test_auto_follows_the_instructions_of_the_cpu(monkeypatch, capabilities, has):
    on_machine(monkeypatch, capabilities)
    assert multiplies_bf16(CPU) is has
    found = settled(load_recipe(SftRecipe, None, [*NEEDED, "precision=auto"]))
    assert found.precision == ("bf16" if has else "fp32")
    for kept in ("fp32", "bf16"):
        recipe = load_recipe(SftRecipe, None, [*NEEDED, f"precision={kept}"])
        assert settled(recipe) is recipe


def test_bf16_without_instructions_is_named_with_what_to_set(monkeypatch):
    on_machine(monkeypatch, {})
    recipe = load_recipe(SftRecipe, None, [*NEEDED, "precision=bf16"])
    assert "set precision=auto" in (precision_advice(recipe) or "")
    held = load_recipe(SftRecipe, None, [*NEEDED, "precision=bf16", "base_precision=bf16", "method.type=lora"])
    assert "set precision=fp32 and base_precision=fp32" in (precision_advice(held) or "")
    assert precision_advice(load_recipe(SftRecipe, None, NEEDED)) is None
    on_machine(monkeypatch, {"amx_bf16": True})
    assert precision_advice(recipe) is None


def test_a_run_records_what_auto_became_and_resumes_only_on_its_kind(recipe_of, monkeypatch):
    on_machine(monkeypatch, {})
    said: list[str] = []
    recipe = recipe_of(precision="auto", max_steps=1)
    result = train_sft(recipe, say=said.append)
    assert json.loads((result.run_dir / "run.json").read_text())["recipe"]["precision"] == "fp32"
    assert not any("bf16" in text for text in said)
    on_machine(monkeypatch, {"avx512_bf16": True})
    with pytest.raises(ConfigError, match="precision: was 'fp32', is 'bf16'"):
        train_sft(recipe, resume=True)


def test_a_run_says_when_its_machine_has_no_bfloat16(recipe_of, monkeypatch):
    on_machine(monkeypatch, {})
    said: list[str] = []
    train_sft(recipe_of(precision="bf16", max_steps=1), say=said.append)
    assert "without hardware" in said[0]
