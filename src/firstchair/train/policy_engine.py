"""The engine in this process as the trainer's sampler: weights from memory, and the proof that they answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from firstchair.engines.scoring import ScoreItem
from firstchair.engines.transformers_engine import TransformersEngine
from firstchair.engines.weight_push import TOLERANCE, ProvenPush, WeightsInMemory
from firstchair.train.batching import collate
from firstchair.train.config import BatchLayout
from firstchair.train.examples import Example
from firstchair.train.reference import score
from firstchair.train.scorer import TokenScorer

PROBE_PROMPTS, PROBE_PROMPT_TOKENS, PROBE_TOKENS = 2, 24, 8


class InMemoryPush:
    """Weights of ``scorer`` to ``engine``; see ``rollout_source.PolicyPush``."""

    def __init__(self, scorer: TokenScorer, engine: TransformersEngine, layout: BatchLayout):
        self._scorer, self._layout = scorer, layout
        tolerance = TOLERANCE["float32" if scorer.autocast is None else "bfloat16"]
        self._proven = ProvenPush(WeightsInMemory(engine), probe_items(scorer.head_width), tolerance=tolerance)

    def expected(self) -> list[tuple[float, ...]]:
        """What the trainer says of the probe's ids, nats."""
        examples = [probe_example(item) for item in self._proven.items]
        batch = collate(examples, layout=self._layout).to(self._scorer.device)
        values = score(self._scorer, batch).cpu()
        return [tuple(values[batch.sample_K.cpu() == row].tolist()) for row in range(len(examples))]

    async def push(self, expected: Sequence[Sequence[float]]) -> str:
        """Copy the weights and probe. Raises ``RunFailed`` when the engine says otherwise than the trainer."""
        return (await self._proven.push(inference_weights(self._scorer.model), expected)).revision


def probe_items(vocab_size: int) -> list[ScoreItem]:
    """Fixed random ids: the same for every run over a vocabulary."""
    generator = np.random.default_rng(0)
    rows = generator.integers(0, vocab_size, (PROBE_PROMPTS, PROBE_PROMPT_TOKENS + PROBE_TOKENS)).tolist()
    return [ScoreItem(tuple(row[:PROBE_PROMPT_TOKENS]), tuple(row[PROBE_PROMPT_TOKENS:])) for row in rows]


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
