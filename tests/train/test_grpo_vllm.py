"""GRPO with rollouts from a real vLLM on the CPU; ``firstchair.testing.vllm_server`` says how to install one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.train.test_grpo_run import lines_of, recipe_of

from firstchair.core.errors import RunFailed
from firstchair.engines.openai_engine import OpenAIEngine
from firstchair.testing.vllm_server import MODEL, VllmServer, running_vllm
from firstchair.train.base_model import copy_base_model
from firstchair.train.checkpoints import list_checkpoints
from firstchair.train.grpo_run import GrpoResult, train_grpo
from firstchair.train.rollout_batches import RolloutBatches

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

FLAGS = ["--enable-lora", "--max-lora-rank", "8"]
FLAGS += ["--worker-extension-cls", "firstchair.engines.vllm_worker.CheckpointLoader"]
ENVIRONMENT = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_SERVER_DEV_MODE": "1"}
ENVIRONMENT["PYTHONPATH"] = str(Path(__file__).parents[2] / "src")
METHODS = {"lora": {"type": "lora", "rank": 4}, "full": {"type": "full"}}


def recipe(base: Path, out: Path, server: VllmServer, method: str) -> Any:
    engine = {"type": "vllm", "base_url": server.openai_url, "model": MODEL, "dtype": "float32", "tries": 2}
    rollouts = {"prompts": 2, "samples": 4, "max_steps": 3, "max_new_tokens": 24}
    learning = {"optimizer": {"type": "adamw", "lr": 3e-3}, "method": METHODS[method]}
    return recipe_of(base, out, engine=engine, rollouts=rollouts, **learning)


def check(run: GrpoResult, say: Callable[[str, object], None]) -> None:
    assert [line["step"] for line in run.metrics] == [1, 2, 3]
    for line in run.metrics:
        assert line["behaviour_diff"] < 1e-3
        assert line["ungraded"] == 0
        assert line["grad_norm"] > 0
        say(f"{run.run_dir.name}_{line['step']}", (line["behaviour_diff"], line["behaviour_diff_max"]))
    weights: dict[int, set[str]] = {}
    for line in lines_of(run.run_dir):
        weights.setdefault(line["batch"], set()).update(line["weights"])
    assert [len(names) for names in weights.values()] == [1, 1, 1]
    assert len(set.union(*weights.values())) == 3
    assert len(list((run.run_dir / "pushed").iterdir())) == 1


def killing(server: VllmServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL to ``server`` at the fifth action of the second batch; those before it have been answered."""
    make, generate, batches, acts = RolloutBatches.make, OpenAIEngine.generate, [], []

    async def counted(self: Any, cursor: int) -> Any:
        batches.append(cursor)
        return await make(self, cursor)

    async def dying(self: Any, requests: Any) -> Any:
        acts.append(len(batches))
        if acts.count(2) == 5:
            server.kill()
        async for generation in generate(self, requests):
            yield generation

    monkeypatch.setattr(RolloutBatches, "make", counted)
    monkeypatch.setattr(OpenAIEngine, "generate", dying)


def test_a_policy_is_trained_killed_and_goes_on_by_adapters_and_by_whole_models(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """One test: each server serves one after the other, since starting one is what costs."""
    base, cut = copy_base_model(tmp_path / "base"), ""
    for start, methods in enumerate((["lora"], ["lora", "full"], ["full"])):
        log = tmp_path / f"vllm-{start}.log"
        with running_vllm(base, log, max_model_len=4096, extra=FLAGS, environment=ENVIRONMENT) as server:
            if cut:
                # Another port, too: where the server is may change.
                check(train_grpo(recipe(base, tmp_path / f"cut-{cut}", server, cut), resume=True), record_property)
            if start == 2:
                break
            cut = methods[-1]
            check(train_grpo(recipe(base, tmp_path / f"whole-{cut}", server, cut)), record_property)
            run = tmp_path / f"cut-{cut}"
            with pytest.MonkeyPatch.context() as patch:
                killing(server, patch)
                with pytest.raises(RunFailed) as stopped:
                    train_grpo(recipe(base, run, server, cut))
            assert server.openai_url in str(stopped.value)
            assert "resume" in str(stopped.value)
            assert [path.name for path in list_checkpoints(run / "checkpoints")] == ["step-00000001"]
