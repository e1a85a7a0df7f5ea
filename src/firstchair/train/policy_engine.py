"""The trainer's weights into the engine that samples, and the proof that they answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic

import numpy as np
import torch
from torch import Tensor

from firstchair.engines.scoring import ScoreItem
from firstchair.engines.transformers_engine import TransformersEngine
from firstchair.engines.weight_push import TOLERANCE, ProvenPush, WeightPush, Weights, WeightsInMemory
from firstchair.train.batching import collate
from firstchair.train.config import BatchLayout
from firstchair.train.examples import Example
from firstchair.train.reference import score
from firstchair.train.scorer import TokenScorer

PROBE_PROMPTS, PROBE_PROMPT_TOKENS, PROBE_TOKENS = 2, 24, 8


class ProbedPush(Generic[Weights]):
    """The weights of ``scorer``, as ``current`` gives them, to an engine; see ``rollout_source.PolicyPush``."""

    def __init__(
        self,
        scorer: TokenScorer,
        layout: BatchLayout,
        weights: WeightPush[Weights],
        current: Callable[[], Weights],
        *,
        dtype: str = "float32",
        prompt_tokens: int = PROBE_PROMPT_TOKENS,
    ):
        """``dtype``: what the engine computes in. ``prompt_tokens``: of each probed prompt."""
        self._scorer, self._layout, self._current = scorer, layout, current
        tolerance = TOLERANCE[dtype if scorer.autocast is None else "bfloat16"]
        items = probe_items(scorer.head_width, prompt_tokens)
        self._proven = ProvenPush(weights, items, tolerance=tolerance)

    def expected(self) -> list[tuple[float, ...]]:
        """What the trainer says of the probe's ids, nats."""
        examples = [probe_example(item) for item in self._proven.items]
        batch = collate(examples, layout=self._layout).to(self._scorer.device)
        values = score(self._scorer, batch).cpu()
        return [tuple(values[batch.sample_K.cpu() == row].tolist()) for row in range(len(examples))]

    async def push(self, expected: Sequence[Sequence[float]]) -> str:
        """Push and probe. Raises ``RunFailed`` when the engine says otherwise than the trainer."""
        return (await self._proven.push(self._current(), expected)).revision

    async def confirm(self) -> None:
        """Probe again. Raises ``RunFailed`` when the engine no longer has these weights."""
        await self._proven.confirm()


class InMemoryPush(ProbedPush[Mapping[str, Tensor]]):
    """To the engine in this process, by copying."""

    def __init__(self, scorer: TokenScorer, engine: TransformersEngine, layout: BatchLayout):
        super().__init__(scorer, layout, WeightsInMemory(engine), lambda: inference_weights(scorer.model))


def probe_items(vocab_size: int, prompt_tokens: int) -> list[ScoreItem]:
    """Fixed random ids: the same for every run over a vocabulary."""
    generator = np.random.default_rng(0)
    rows = generator.integers(0, vocab_size, (PROBE_PROMPTS, prompt_tokens + PROBE_TOKENS)).tolist()
    return [ScoreItem(tuple(row[:prompt_tokens]), tuple(row[prompt_tokens:])) for row in rows]


def probe_example(item: ScoreItem) -> Example:
    """The item as the trainer sees it."""
    ids = np.array([*item.prompt_ids, *item.ids], np.int32)
    return Example(ids, np.arange(len(ids)) >= len(item.prompt_ids))


def inference_weights(model: Any) -> Mapping[str, Tensor]:
    """The weights that answer, by the names of the bare model's parameters; adapters are added to what they adapt."""
    if not hasattr(model, "get_base_model"):
        return dict(model.named_parameters())
    weights: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, module in model.get_base_model().named_modules():
            adapters = list(getattr(module, "lora_A", {}))
            for own, parameter in module.named_parameters(recurse=False):
                plain = f"{name}.{own}".removeprefix(".").replace(".base_layer", "")
                weights.setdefault(plain, parameter)
            if adapters:
                delta = sum(module.get_delta_weight(adapter) for adapter in adapters)
                base = module.get_base_layer().weight
                weights[f"{name}.weight"] = base + delta.to(base.dtype)
    return weights
