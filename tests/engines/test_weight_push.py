"""Pushing weights, and the probe after it: real tiny models on both sides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from firstchair.core.errors import ConfigError, RunFailed, UpstreamError
from firstchair.engines.base import Request, Sampling
from firstchair.engines.http_engine import HttpOptions
from firstchair.engines.http_retry import RetryPolicy
from firstchair.engines.openai_engine import OpenAIEngine
from firstchair.engines.scoring import ScoreItem
from firstchair.engines.server_weights import SglangWeights, VllmAdapterWeights, VllmCheckpointWeights
from firstchair.engines.transformers_engine import TransformersEngine
from firstchair.engines.weight_push import TOLERANCE, Checkpoint, InProcessWeights, ProvenPush, largest_difference
from firstchair.engines.weights import weights_revision
from firstchair.testing.fault_server import Answer, FaultServer, Seen
from firstchair.testing.tiny_models import tiny_adapter

ITEMS = [ScoreItem(tuple(range(3, 40)), (9, 8, 7)), ScoreItem((5, 6), (11,))]
ONE_TRY = HttpOptions(retry=RetryPolicy(tries=1))
FP32 = TOLERANCE["float32"]


def trainer(checkpoint: Checkpoint) -> list[tuple[float, ...]]:
    """What a trainer computes: one plain forward pass an item."""
    from firstchair.engines.weights import load_model

    return Sglang.scores(load_model(checkpoint.model_dir, adapter=checkpoint.adapter).model, ITEMS)


@pytest.fixture
def checkpoints(model_dirs: Callable[..., Path], tmp_path: Path) -> list[Checkpoint]:
    """A base, an adapter on it, a second one, and another model of the same shape."""
    base = model_dirs("Qwen3")
    return [
        Checkpoint(base),
        Checkpoint(base, tiny_adapter(base, tmp_path / "one", seed=1)),
        Checkpoint(base, tiny_adapter(base, tmp_path / "two", seed=2)),
        Checkpoint(model_dirs("Qwen3", initializer_range=0.3)),
    ]


class Deaf(InProcessWeights):
    """Says that it took the weights and keeps the old ones."""

    async def push(self, checkpoint: Checkpoint) -> str:
        return weights_revision(checkpoint.model_dir, checkpoint.adapter)


def test_each_push_is_proven_and_generations_carry_its_revision(
    open_engine: Callable[..., TransformersEngine], checkpoints: list[Checkpoint]
):
    engine = open_engine(checkpoints[0].model_dir)

    async def run() -> None:
        proven = ProvenPush(InProcessWeights(engine), ITEMS, tolerance=FP32)
        for place, checkpoint in enumerate(checkpoints):
            pushed = await proven.push(checkpoint, trainer(checkpoint))
            assert pushed.revision == weights_revision(checkpoint.model_dir, checkpoint.adapter)
            assert pushed.difference < 1e-4
            assert (pushed.change is None) == (place == 0)
            assert pushed.change is None or pushed.change > FP32
            request = Request("r", prompt_ids=(5, 6), sampling=Sampling(max_new_tokens=2))
            assert [g.revision async for g in engine.generate([request])] == [pushed.revision]

    asyncio.run(run())


def test_weights_pushed_twice_may_answer_alike(
    open_engine: Callable[..., TransformersEngine], checkpoints: list[Checkpoint]
):
    async def run() -> None:
        proven = ProvenPush(InProcessWeights(open_engine(checkpoints[0].model_dir)), ITEMS, tolerance=FP32)
        for _ in range(2):
            pushed = await proven.push(checkpoints[1], trainer(checkpoints[1]))
        assert pushed.change == 0.0

    asyncio.run(run())


def test_an_engine_that_keeps_the_old_weights_is_found_out(
    open_engine: Callable[..., TransformersEngine], checkpoints: list[Checkpoint]
):
    base, other = checkpoints[0], checkpoints[1]
    gap = largest_difference(trainer(base), trainer(other))

    async def run(tolerance: float) -> None:
        proven = ProvenPush(Deaf(open_engine(base.model_dir)), ITEMS, tolerance=tolerance)
        await proven.push(base, trainer(base))
        await proven.push(other, trainer(other))

    with pytest.raises(
        RunFailed, match=rf"trainer's by up to {gap:.2g} nats.*before the push by up to 0; the old weights"
    ):
        asyncio.run(run(FP32))
    # A tolerance that no figure can exceed does not hide that nothing changed.
    with pytest.raises(RunFailed, match=r"the old weights still answer.*the trainer's own moved by up to"):
        asyncio.run(run(1e6))


def test_a_figure_that_is_no_number_fails_the_probe(
    open_engine: Callable[..., TransformersEngine], checkpoints: list[Checkpoint]
):
    async def run(expected: Sequence[Sequence[float]]) -> None:
        proven = ProvenPush(InProcessWeights(open_engine(checkpoints[0].model_dir)), ITEMS, tolerance=FP32)
        await proven.push(checkpoints[0], expected)

    with pytest.raises(RunFailed, match="by up to nan"):
        asyncio.run(run([(float("nan"), -1.0, -1.0), (-1.0,)]))
    with pytest.raises(RunFailed, match="expected one for each id of the probe"):
        asyncio.run(run([(-1.0,)]))


def test_a_probe_needs_items_and_a_tolerance(open_engine: Callable[..., TransformersEngine]):
    for items, tolerance in (([], 1.0), (ITEMS, 0.0)):
        with pytest.raises(ConfigError, match="expected at least one item"):
            ProvenPush(None, items, tolerance=tolerance)  # type: ignore[arg-type]


class Sglang:
    """SGLang's documented wire, with a real model behind it. ``deaf`` answers success and keeps the old weights."""

    def __init__(self, base: Path, *, deaf: bool = False):
        self.base, self.deaf = base, deaf
        self.loras: dict[str, Path] = {}
        self.models: dict[Path | None, Any] = {}

    def __call__(self, seen: Seen, number: int) -> Answer:
        body = seen.body
        if seen.path == "/generate":
            return self.generate(body)
        if seen.path == "/flush_cache":
            return Answer(b"Cache flushed.\n")
        if seen.path == "/update_weights_from_disk":
            if not (Path(body["model_path"]) / "config.json").is_file():
                return Answer({"success": False, "message": "Failed to get weights iterator"}, status=400)
            if not self.deaf:
                self.base, self.models = Path(body["model_path"]), {}
            return Answer(
                {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
            )
        name = body["lora_name"]
        if seen.path == "/unload_lora_adapter":
            del self.loras[name]
            return Answer({"success": True, "loaded_adapters": {}})
        if name in self.loras:
            return Answer({"success": False, "error_message": f"{name} is already loaded"}, status=400)
        self.loras[name] = Path(body["lora_path"])
        return Answer({"success": True, "loaded_adapters": {name: body["lora_path"]}})

    def generate(self, body: dict[str, Any]) -> Answer:
        from firstchair.engines.weights import load_model

        assert body["sampling_params"]["max_new_tokens"] == 0
        adapter = self.loras[body["lora_path"]] if "lora_path" in body else None
        if adapter not in self.models:
            self.models[adapter] = load_model(self.base, adapter=adapter).model
        start, ids = body["logprob_start_len"], body["input_ids"]
        (scores,) = self.scores(self.models[adapter], [ScoreItem(tuple(ids[: start + 1]), tuple(ids[start + 1 :]))])
        rows = [[None, ids[start], None]]
        rows += [[score, token, None] for score, token in zip(scores, ids[start + 1 :], strict=True)]
        return Answer({"text": "", "meta_info": {"input_token_logprobs": rows, "weight_version": "default"}})

    @staticmethod
    def scores(model: Any, items: Sequence[ScoreItem]) -> list[tuple[float, ...]]:
        import torch

        out = []
        for item in items:
            ids, count = torch.tensor([item.prompt_ids + item.ids]), len(item.ids)
            with torch.no_grad():
                logprobs = model(ids).logits[0, -count - 1 : -1].log_softmax(-1)
            out.append(tuple(logprobs[range(count), list(item.ids)].tolist()))
        return out


@pytest.fixture
def sglang(checkpoints: list[Checkpoint]) -> Iterator[Callable[..., tuple[FaultServer, OpenAIEngine]]]:
    opened: list[FaultServer] = []

    def get(**options: Any) -> tuple[FaultServer, OpenAIEngine]:
        opened.append(FaultServer(Sglang(checkpoints[0].model_dir, **options)).__enter__())
        return opened[-1], OpenAIEngine(f"{opened[-1].base_url}/v1", "m", api_key="secret", options=ONE_TRY)

    yield get
    for server in opened:
        server.__exit__()


def test_sglang_takes_models_and_adapters_by_its_documented_wire(
    sglang: Callable[..., tuple[FaultServer, OpenAIEngine]], checkpoints: list[Checkpoint]
):
    server, engine = sglang()
    base, one, two, other = checkpoints

    async def run() -> None:
        async with SglangWeights(engine) as weights:
            proven = ProvenPush(weights, ITEMS, tolerance=FP32)
            for checkpoint in (other, base, one, two):
                pushed = await proven.push(checkpoint, trainer(checkpoint))
                assert engine.revision == engine.info().revision == pushed.revision
        await engine.close()

    asyncio.run(run())
    commands = [seen.path for seen in server.seen if seen.path != "/generate"]
    assert commands == [
        "/update_weights_from_disk",
        "/update_weights_from_disk",
        "/load_lora_adapter",
        "/flush_cache",
        "/unload_lora_adapter",
        "/load_lora_adapter",
        "/flush_cache",
    ]
    assert server.seen[0].body["weight_version"] == weights_revision(other.model_dir)
    assert server.seen[0].body["flush_cache"] is True
    assert all(seen.headers["authorization"] == "Bearer secret" for seen in server.seen)


def test_sglang_that_keeps_the_old_weights_or_refuses_is_a_typed_error(
    sglang: Callable[..., tuple[FaultServer, OpenAIEngine]], checkpoints: list[Checkpoint], tmp_path: Path
):
    _, deaf = sglang(deaf=True)
    _, engine = sglang()
    other = checkpoints[3]
    (tmp_path / "model.safetensors").write_bytes(b"no weights")

    async def run(engine: OpenAIEngine, checkpoint: Checkpoint) -> None:
        async with SglangWeights(engine) as weights:
            await ProvenPush(weights, ITEMS, tolerance=FP32).push(checkpoint, trainer(other))
        await engine.close()

    with pytest.raises(RunFailed, match="does not answer with the pushed weights"):
        asyncio.run(run(deaf, other))
    with pytest.raises(UpstreamError, match="Failed to get weights iterator"):
        asyncio.run(run(engine, Checkpoint(tmp_path)))
    # Nobody knows now which weights answer, and generations say so.
    assert engine.revision == ""


def test_a_checkpoint_of_the_wrong_kind_is_refused_before_anything_is_sent(checkpoints: list[Checkpoint]):
    def nothing(seen: Seen, number: int) -> Answer:
        raise AssertionError(seen.path)

    async def run(url: str) -> None:
        engine = OpenAIEngine(url, "m")
        async with VllmAdapterWeights(engine) as adapters, VllmCheckpointWeights(engine) as models:
            with pytest.raises(ConfigError, match="no adapter"):
                await adapters.push(checkpoints[0])
            with pytest.raises(ConfigError, match="merge it"):
                await models.push(checkpoints[1])
        await engine.close()

    with FaultServer(nothing) as server:
        asyncio.run(run(server.base_url))


def test_a_reply_that_was_under_way_during_a_push_names_no_revision():
    def script(seen: Seen, number: int) -> Answer:
        engine.revision = ["one", "two", "two"][number]
        return Answer({"choices": [{"text": "x", "finish_reason": "stop"}]})

    async def run() -> list[str]:
        out = []
        for name in "abc":
            async for generation in engine.generate([Request(name, prompt_ids=(1,))]):
                assert generation.error is None, generation.error
                out.append(generation.revision)
        await engine.close()
        return out

    with FaultServer(script) as server:
        engine = OpenAIEngine(server.base_url, "m", options=ONE_TRY)
        assert asyncio.run(run()) == ["", "", "two"]


def test_an_engine_that_lost_its_weights_since_the_push_is_found_out(
    open_engine: Callable[..., TransformersEngine], checkpoints: list[Checkpoint]
):
    engine, (base, tuned, *_) = open_engine(checkpoints[0].model_dir), checkpoints

    async def run() -> None:
        proven = ProvenPush(InProcessWeights(engine), ITEMS, tolerance=FP32)
        await proven.push(tuned, trainer(tuned))
        await proven.confirm()
        await engine.reload(base.model_dir)
        with pytest.raises(RunFailed, match=r"no longer answers with the pushed weights.*started anew"):
            await proven.confirm()

    asyncio.run(run())


def test_sglang_replaces_an_adapter_that_a_process_before_it_has_loaded(
    sglang: Callable[..., tuple[FaultServer, OpenAIEngine]], checkpoints: list[Checkpoint]
):
    server, engine = sglang()

    async def run() -> None:
        for checkpoint in checkpoints[1:3]:
            async with SglangWeights(engine) as weights:
                await ProvenPush(weights, ITEMS, tolerance=FP32).push(checkpoint, trainer(checkpoint))
        await engine.close()

    asyncio.run(run())
    commands = [seen.path.strip("/") for seen in server.seen if seen.path != "/generate"]
    loaded = ["load_lora_adapter", "flush_cache"]
    assert commands == [*loaded, "load_lora_adapter", "unload_lora_adapter", *loaded]
