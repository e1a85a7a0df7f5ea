"""Attention over a packed batch: many sequences in one row, each token reading its own path of the KV tree.

The model runs on ``[1, tokens]``; projections and MLPs see one dense batch without padding. Attention is ours,
put in place of the model's through transformers' attention interface. It computes softmax over several pieces
of keys (blocks of shared branches, then the query's own new tokens) and joins the pieces by their log-sum-exp,
which is exact: softmax over a union is the average of the parts weighted by exp(logsumexp).

Heads: query head ``h`` reads key head ``h // repeat``, as everywhere in transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from firstchair.engines.attention_plan import AttentionPlan, plan_attention
from firstchair.engines.jobs import Tokens
from firstchair.engines.kv_tree import Branch, Path

ATTENTION_NAME = "firstchair_packed"

_UNSUPPORTED = ("sliding_window", "softcap", "s_aux", "position_bias")


class UnsupportedAttention(Exception):
    """The model's attention does something that packed attention does not; it is then served one at a time."""


class AttentionPass(Protocol):
    """What one forward pass attends to."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """``query`` is ``[1, heads, tokens, head_dim]``; returns ``[1, tokens, heads, head_dim]``."""
        ...


_ACTIVE: ContextVar[AttentionPass | None] = ContextVar("firstchair_attention_pass", default=None)


@contextmanager
def attending(attention: AttentionPass) -> Iterator[None]:
    """Make ``attention`` the one that the model's layers use inside the block."""
    token = _ACTIVE.set(attention)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function that transformers calls in each layer in place of its own attention."""
    found = [name for name in _UNSUPPORTED if kwargs.get(name) is not None]
    if attention_mask is not None:
        found.append("attention_mask")
    active = _ACTIVE.get()
    layer = getattr(module, "layer_idx", None)
    if found or active is None or not isinstance(layer, int):
        raise UnsupportedAttention(f"{type(module).__name__}: {', '.join(found) or 'no layer index'}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return active.attend(layer, query, key, value, scale), None


def partial_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, *, mask: Tensor | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attention over some of the keys, and the log-sum-exp of its scores (float32, nats).

    ``query`` ``[b, h, q, d]``, ``key`` and ``value`` ``[b, h, k, d]`` (expanded views are fine), additive
    ``mask`` broadcastable to ``[b, h, q, k]``. Returns ``[b, h, q, d]`` and ``[b, h, q]``.
    """
    if query.device.type == "cpu" and query.shape[-1] == value.shape[-1]:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=mask, scale=scale
        )
        return out, lse
    scores = torch.matmul(query, key.transpose(-1, -2)).float() * scale
    if mask is not None:
        scores = scores + mask
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    lse = torch.logsumexp(scores, dim=-1)
    return torch.matmul((scores - lse[..., None]).exp().to(value.dtype), value), lse


class Pieces:
    """Partial results of a batch, one level on top of the other, and their exact union.

    ``outs`` ``[levels, *shape, head_dim]`` and ``lses`` ``[levels, *shape]``. A query without a piece at some
    level keeps log-sum-exp minus infinity there, that is weight 0. The buffers are used by layer after layer.
    """

    def __init__(self, levels: int, shape: Sequence[int], head_dim: int, like: Tensor):
        self.outs = like.new_zeros((levels, *shape, head_dim))
        self.lses = like.new_full((levels, *shape), float("-inf"), dtype=torch.float32)

    def union(self) -> Tensor:
        """``[*shape, head_dim]``; every query must have at least one piece."""
        if len(self.outs) == 1:
            return self.outs[0]
        weights = torch.softmax(self.lses, dim=0).to(self.outs.dtype)
        return torch.mul(self.outs, weights[..., None]).sum(0)


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive new tokens behind a path: a stretch of prefill, or a reply to be scored."""

    tokens: Tokens
    position: int
    """Of the first token in its sequence."""
    path: Path
    store: Branch | None = None
    """Where keys and values go."""
    store_at: int = 0


class SpanPass:
    """Attention of several spans packed in one row: each token sees its span's path and the span up to itself."""

    def __init__(self, spans: Sequence[Span], device: torch.device):
        self.plan: AttentionPlan = plan_attention([span.path for span in spans], [len(span.tokens) for span in spans])
        self.spans = [spans[index] for index in self.plan.order]
        self.bounds: list[tuple[int, int]] = []
        end = 0
        for span in self.spans:
            self.bounds.append((end, end + len(span.tokens)))
            end += len(span.tokens)
        tokens = np.concatenate([span.tokens for span in self.spans]).astype(np.int64)
        positions = np.concatenate(
            [np.arange(span.position, span.position + len(span.tokens)) for span in self.spans]
        )
        self.input_ids = torch.from_numpy(tokens)[None].to(device)
        """``[1, tokens]``, in the plan's order."""
        self.position_ids = torch.from_numpy(positions)[None].to(device)
        self._pieces: Pieces | None = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Store the new keys and values, then attend; see ``AttentionPass``."""
        heads, count, dim = query.shape[1:]
        kv_heads = key.shape[1]
        repeat = heads // kv_heads
        for span, (first, last) in zip(self.spans, self.bounds, strict=True):
            if span.store is not None:
                span.store.write(layer, span.store_at, key[0, :, first:last], value[0, :, first:last])
        # [repeat, kv_heads, tokens, dim]: the heads that share a key head become the batch, keys are expanded.
        split = query[0].view(kv_heads, repeat, count, dim).transpose(0, 1)
        shape = (repeat, kv_heads, count)
        if self._pieces is None or self._pieces.outs.shape[1:] != (*shape, value.shape[-1]):
            self._pieces = Pieces(self.plan.levels + 1, shape, value.shape[-1], query)
        pieces = self._pieces
        for first, last in self.bounds:
            out, lse = partial_attention(
                split[:, :, first:last],
                key[:, :, first:last].expand(repeat, -1, -1, -1),
                value[:, :, first:last].expand(repeat, -1, -1, -1),
                scale,
                causal=True,
            )
            pieces.outs[-1][:, :, first:last] = out
            pieces.lses[-1][:, :, first:last] = lse
        for block in self.plan.blocks:
            keys, values = block.branch.view(layer, block.start, block.end)
            out, lse = partial_attention(
                split[:, :, block.first : block.last],
                keys.expand(repeat, -1, -1, -1),
                values.expand(repeat, -1, -1, -1),
                scale,
                mask=block.mask(1, query.dtype, query.device),
            )
            pieces.outs[block.level][:, :, block.first : block.last] = out
            pieces.lses[block.level][:, :, block.first : block.last] = lse
        return pieces.union().permute(2, 1, 0, 3).reshape(1, count, heads, -1)


class DecodePass:
    """Attention of one new token per row: it sees its row's path in the tree and the row's own earlier tokens.

    Own keys and values lie in ``[rows, kv_heads, room, head_dim]`` per layer. Rows stand in the plan's order.
    """

    def __init__(self, paths: Sequence[Path], room: int, layers: int, device: torch.device):
        self.plan = plan_attention(paths)
        self.rows, self.room = len(paths), room
        self.longest = 0
        """Own tokens of the row that has most."""
        self._keys: list[Tensor | None] = [None] * layers
        self._values: list[Tensor | None] = [None] * layers
        self._views: list[list[tuple[Tensor, Tensor]] | None] = [None] * layers
        self._pieces: Pieces | None = None
        self._all_rows = torch.arange(self.rows, device=device)
        self._ragged: Tensor | None = None
        """Own lengths when they differ: ``[rows]``; rows of equal length need neither scatter nor mask."""
        self._mask: Tensor | None = None

    def set_lengths(self, lengths: Sequence[int]) -> None:
        """How many own tokens each row has, in the plan's order."""
        self.longest = max(lengths)
        if min(lengths) != self.longest:
            self._ragged = torch.tensor(list(lengths), device=self._all_rows.device)
            hidden = torch.arange(self.room, device=self._all_rows.device)[None] >= self._ragged[:, None]
            self._mask = torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, float("-inf"))

    def take_over(self, old: DecodePass, kept: Sequence[tuple[int, int]]) -> None:
        """Copy own keys and values of rows ``(new place, old place)`` from ``old``."""
        if not kept:
            return
        device = self._all_rows.device
        new_places = torch.tensor([new for new, _ in kept], device=device)
        old_places = torch.tensor([place for _, place in kept], device=device)
        width = min(self.room, old.room)
        for mine, theirs in ((self._keys, old._keys), (self._values, old._values)):
            for layer, store in enumerate(theirs):
                if store is not None:
                    fresh = store.new_zeros((self.rows, store.shape[1], self.room, store.shape[3]))
                    fresh[new_places, :, :width] = store[old_places, :, :width]
                    mine[layer] = fresh

    def own_layers(self, place: int, count: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of a row's first ``count`` own tokens, ``[kv_heads, count, head_dim]`` per layer."""
        layers: list[tuple[Tensor, Tensor]] = []
        for keys, values in zip(self._keys, self._values, strict=True):
            assert keys is not None, "read before the first step"
            assert values is not None, "read before the first step"
            layers.append((keys[place, :, :count], values[place, :, :count]))
        return layers

    def step(self) -> None:
        """Open the place for this step's token; call it before each forward pass."""
        self.longest += 1
        if self._ragged is not None and self._mask is not None:
            self._mask[self._all_rows, self._ragged] = 0.0

    def advance(self) -> None:
        """Count this step's token; call it after each forward pass."""
        if self._ragged is not None:
            self._ragged += 1

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Store the new keys and values, then attend; see ``AttentionPass``."""
        heads, _, dim = query.shape[1:]
        kv_heads = key.shape[1]
        repeat = heads // kv_heads
        own_keys, own_values = self._stored(layer, key, value)
        mask = None if self._mask is None else self._mask[:, None, None, : self.longest].to(query.dtype)
        out, lse = partial_attention(
            query[0].view(kv_heads, repeat, self.rows, dim).permute(2, 0, 1, 3),
            own_keys[:, :, : self.longest],
            own_values[:, :, : self.longest],
            scale,
            mask=mask,
        )
        if not self.plan.blocks:
            return out.reshape(1, self.rows, heads, -1)
        # [1, kv_heads, rows * repeat, dim]: the heads that share a key head become rows of one product.
        joined = query[0].view(kv_heads, repeat, self.rows, dim).transpose(1, 2).reshape(1, kv_heads, -1, dim)
        shape = (kv_heads, self.rows * repeat)
        if self._pieces is None or self._pieces.outs.shape[1:] != (*shape, value.shape[-1]):
            self._pieces = Pieces(self.plan.levels + 1, shape, value.shape[-1], query)
        pieces = self._pieces
        pieces.outs[-1].view(kv_heads, self.rows, repeat, -1).copy_(out.transpose(0, 1))
        pieces.lses[-1].view(kv_heads, self.rows, repeat).copy_(lse.transpose(0, 1))
        views = self._views[layer]
        if views is None:
            views = [block.branch.view(layer, block.start, block.end) for block in self.plan.blocks]
            self._views[layer] = views
        for block, (keys, values) in zip(self.plan.blocks, views, strict=True):
            first, last = block.first * repeat, block.last * repeat
            out, lse = partial_attention(
                joined[:, :, first:last],
                keys,
                values,
                scale,
                mask=block.mask(repeat, query.dtype, query.device),
            )
            pieces.outs[block.level][:, first:last] = out[0]
            pieces.lses[block.level][:, first:last] = lse[0]
        return pieces.union().view(kv_heads, self.rows, repeat, -1).transpose(0, 1).reshape(1, self.rows, heads, -1)

    def _stored(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        own_keys, own_values = self._keys[layer], self._values[layer]
        if own_keys is None or own_values is None:
            # Zeros, not garbage: a masked NaN would still spoil the product with its weight 0.
            own_keys = key.new_zeros((self.rows, key.shape[1], self.room, key.shape[3]))
            own_values = value.new_zeros((self.rows, value.shape[1], self.room, value.shape[3]))
            self._keys[layer], self._values[layer] = own_keys, own_values
        if self._ragged is None:
            own_keys[:, :, self.longest - 1] = key[0].transpose(0, 1)
            own_values[:, :, self.longest - 1] = value[0].transpose(0, 1)
        else:
            own_keys[self._all_rows, :, self._ragged] = key[0].transpose(0, 1)
            own_values[self._all_rows, :, self._ragged] = value[0].transpose(0, 1)
        return own_keys, own_values
