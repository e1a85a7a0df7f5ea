"""Whether packed decoding is exact for a model: what its configuration rules out, then a trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from firstchair.engines.packed_attention import ATTENTION_NAME, UnsupportedAttention, packed_attention
from firstchair.engines.packed_runner import Limits, PackedRunner
from firstchair.engines.plain_runner import PlainRunner
from firstchair.engines.runner import Finisher
from firstchair.engines.scoring import ScoreItem
from firstchair.engines.weights import LoadedModel

_BATCH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})
"""Rotary variants whose frequencies depend on the longest position in the batch."""

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25}
"""Largest difference of a log-probability in the trial, nats. A wrong mask or position moves it by far more."""


def use_packed_attention(loaded: LoadedModel) -> str | None:
    """Switch the model to packed attention; returns why that is impossible, the model left as it was then."""
    from transformers import AttentionInterface

    reason = _ruled_out(loaded)
    if reason is not None:
        return reason
    finisher = Finisher((), lambda ids: "", loaded.revision)
    items = _trial(loaded.vocab_size)
    with torch.inference_mode():
        expected = PlainRunner(loaded, finisher).score(items)
        AttentionInterface.register(ATTENTION_NAME, packed_attention)
        loaded.model.set_attn_implementation(ATTENTION_NAME)
        try:
            found = PackedRunner(loaded, finisher, Limits(max_batch_tokens=4096, max_cached_tokens=0)).score(items)
            worst = _largest_difference(expected, found)
        except UnsupportedAttention as error:
            loaded.model.set_attn_implementation(loaded.attention)
            return f"attention with {error}"
    if worst > _TOLERANCE.get(loaded.model.dtype, 0.25):
        loaded.model.set_attn_implementation(loaded.attention)
        return f"a trial differed by {worst:.3g} nats from the model's own attention"
    return None


def _ruled_out(loaded: LoadedModel) -> str | None:
    config = loaded.model.config.get_text_config()
    if not getattr(loaded.model, "_supports_attention_backend", False):
        return "the model has no exchangeable attention"
    if not {"position_ids", "logits_to_keep"} <= loaded.arguments:
        return "forward takes no position_ids or no logits_to_keep"
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"]) - {"full_attention"}
    if kinds:
        return f"layers of type {', '.join(sorted(kinds))}"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in _BATCH_DEPENDENT_ROPE:
        return f"rotary embedding of type {rope['rope_type']}"
    return None


def _trial(vocab_size: int) -> list[ScoreItem]:
    """Three continuations: two from different depths of one prompt, one that leaves it half-way."""
    generator = torch.Generator().manual_seed(0)
    tokens: list[int] = torch.randint(0, vocab_size, (64,), generator=generator).tolist()
    base = ScoreItem(tuple(tokens[:24]), tuple(tokens[40:46]), "trial")
    return [
        base,
        replace(base, prompt_ids=tuple(tokens[:9])),
        replace(base, prompt_ids=tuple(tokens[:13] + tokens[50:60])),
    ]


def _largest_difference(left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> float:
    pairs = [abs(a - b) for ours, theirs in zip(left, right, strict=True) for a, b in zip(ours, theirs, strict=True)]
    return max(pairs, default=0.0)
