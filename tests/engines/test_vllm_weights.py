"""New weights into a real vLLM server on the CPU; ``firstchair.testing.vllm_server`` says how to install one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from firstchair.core.errors import RunFailed
from firstchair.engines.base import Generation, Request, Sampling
from firstchair.engines.openai_engine import OpenAIEngine
from firstchair.engines.scoring import ScoreItem
from firstchair.engines.server_weights import VllmAdapterWeights, VllmCheckpointWeights
from firstchair.engines.transformers_engine import TransformersEngine
from firstchair.engines.weight_push import Checkpoint, ProvenPush, largest_difference
from firstchair.engines.weights import weights_revision
from firstchair.testing.tiny_models import tiny_adapter
from firstchair.testing.vllm_server import MODEL, VllmServer, running_vllm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOLERANCE = 1e-4
"""Nats; float32 on both sides shows 5e-6."""
PROMPT = tuple(3 + place * 7 % 250 for place in range(300))
"""Longer than two blocks of vLLM's prefix cache on a CPU (128 tokens each)."""
ITEMS = [ScoreItem(PROMPT, (9, 8, 7)), ScoreItem((5, 6), (11,))]


@pytest.fixture(scope="module")
def model_dirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two models of one shape; their output head is tied to the embedding, where vLLM's own reload goes wrong."""
    from firstchair.train.tiny import build_model, build_tokenizer, save_model

    texts = [f"word{number} and more {number * 7}" for number in range(400)]
    tokenizer = build_tokenizer(texts, vocab_size=600)
    out = []
    for seed in (1, 2):
        out.append(tmp_path_factory.mktemp("tiny"))
        model = build_model(len(tokenizer), hidden=64, layers=2, heads=2, intermediate=128, seed=seed)
        assert model.config.tie_word_embeddings
        for parameter in model.parameters():
            parameter.data *= 4  # fresh weights answer all alike
        save_model(model, tokenizer, out[-1])
    return out[0], out[1]


@pytest.fixture(scope="module")
def server(model_dirs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    log = tmp_path_factory.mktemp("vllm") / "log"
    extra = ["--enable-lora", "--max-lora-rank", "8"]
    extra += ["--worker-extension-cls", "firstchair.engines.vllm_worker.CheckpointLoader"]
    environment = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_SERVER_DEV_MODE": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2] / "src")
    with running_vllm(model_dirs[0], log, extra=extra, environment=environment) as running:
        yield running


async def expected(checkpoint: Checkpoint) -> list[tuple[float, ...]]:
    """The trainer's side: the same weights in transformers."""
    engine = TransformersEngine(checkpoint.model_dir, adapter=checkpoint.adapter)
    try:
        return await engine.score(ITEMS)
    finally:
        await engine.close()


async def sample(engine: OpenAIEngine | TransformersEngine) -> Generation:
    request = Request("r", prompt_ids=PROMPT, sampling=Sampling(max_new_tokens=12))
    (generation,) = [generation async for generation in engine.generate([request])]
    assert generation.error is None, generation.error
    return generation


def test_each_adapter_that_is_loaded_answers_as_it_does_in_transformers(
    server: VllmServer, model_dirs: tuple[Path, Path], tmp_path: Path
):
    base = model_dirs[0]
    adapters = [tiny_adapter(base, tmp_path / str(seed), seed=seed) for seed in (1, 2)]

    async def run() -> None:
        engine = OpenAIEngine(server.openai_url, "tuned")
        replies: list[Generation] = []
        async with VllmAdapterWeights(engine) as weights:
            proven = ProvenPush(weights, ITEMS, tolerance=TOLERANCE)
            for adapter in adapters:
                pushed = await proven.push(Checkpoint(base, adapter), await expected(Checkpoint(base, adapter)))
                assert pushed.revision == weights_revision(base, adapter)
                here, there = TransformersEngine(base, adapter=adapter), engine
                ours, theirs = await sample(here), await sample(there)
                await here.close()
                assert theirs.revision == ours.revision == pushed.revision
                assert (theirs.ids, theirs.prompt_ids) == (ours.ids, ours.prompt_ids)
                assert ours.logprobs is not None
                assert theirs.logprobs is not None
                assert largest_difference([ours.logprobs], [theirs.logprobs]) < TOLERANCE
                replies.append(theirs)
        await engine.close()
        assert replies[0].ids != replies[1].ids

    asyncio.run(run())


def test_an_adapter_that_is_not_loaded_is_found_out(
    server: VllmServer, model_dirs: tuple[Path, Path], tmp_path: Path
):
    base = model_dirs[0]
    one, two = (Checkpoint(base, tiny_adapter(base, tmp_path / str(seed), seed=seed)) for seed in (3, 4))

    class Skipped(VllmAdapterWeights):
        async def push(self, checkpoint: Checkpoint) -> str:
            return weights_revision(checkpoint.model_dir, checkpoint.adapter)

    async def run() -> None:
        engine = OpenAIEngine(server.openai_url, "skipped")
        async with VllmAdapterWeights(engine) as weights, Skipped(engine) as skipped:
            proven = ProvenPush(weights, ITEMS, tolerance=TOLERANCE)
            await proven.push(one, await expected(one))
            proven._weights = skipped
            await proven.push(two, await expected(two))

    with pytest.raises(RunFailed, match="before the push by up to 0; the old weights still answer"):
        asyncio.run(run())


def test_whole_models_are_loaded_head_and_cache_included(server: VllmServer, model_dirs: tuple[Path, Path]):
    async def run() -> None:
        engine = OpenAIEngine(server.openai_url, MODEL)
        async with VllmCheckpointWeights(engine) as weights:
            proven = ProvenPush(weights, ITEMS, tolerance=TOLERANCE)
            for model_dir in (model_dirs[1], model_dirs[0], model_dirs[1]):
                pushed = await proven.push(Checkpoint(model_dir), await expected(Checkpoint(model_dir)))
                assert (await sample(engine)).revision == pushed.revision
        await engine.close()

    asyncio.run(run())


def test_what_vllm_does_by_itself_is_found_out(server: VllmServer, model_dirs: tuple[Path, Path]):
    """Its own reload keeps the tied head; without a reset its cache keeps keys of the old weights."""

    class OwnReload(VllmCheckpointWeights):
        async def push(self, checkpoint: Checkpoint) -> str:
            arguments = {"weights_path": str(checkpoint.model_dir)}
            await self._command("/collective_rpc", {"method": "reload_weights", "kwargs": arguments})
            await self._post("/reset_prefix_cache", {})
            return weights_revision(checkpoint.model_dir)

    class NoReset(VllmCheckpointWeights):
        async def push(self, checkpoint: Checkpoint) -> str:
            arguments = {"weights_path": str(checkpoint.model_dir)}
            await self._post("/collective_rpc", {"method": "firstchair_load", "kwargs": arguments})
            return weights_revision(checkpoint.model_dir)

    async def run(kind: type[VllmCheckpointWeights]) -> None:
        engine = OpenAIEngine(server.openai_url, MODEL)
        one, two = map(Checkpoint, model_dirs)
        async with VllmCheckpointWeights(engine) as right, kind(engine) as wrong:
            await ProvenPush(right, ITEMS, tolerance=TOLERANCE).push(one, await expected(one))
            try:
                await ProvenPush(wrong, ITEMS, tolerance=TOLERANCE).push(two, await expected(two))
            finally:
                await engine.close()

    for kind in (OwnReload, NoReset):
        with pytest.raises(RunFailed, match="does not answer with the pushed weights"):
            asyncio.run(run(kind))
