"""Attention inside each row of a packed batch: no mask is built, no token of another row is looked at.

Registered with transformers under ``NAME``; the model hands ``row_lengths`` down to it untouched. On a CPU every row
is one causal SDPA call, which skips the upper triangle and all padding; on CUDA in half precision the rows go through
one variable-length flash kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

NAME = "firstchair_rows"


def install() -> str:
    """Make the attention known to transformers (once is enough, more does no harm); returns its name."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, rows_attention)
    return NAME


def rows_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention: ``query`` ``[B, H, L, D]``, ``key`` and ``value`` ``[B, H_kv, L, D]`` to ``[B, L, H, D]``.

    With ``row_lengths`` (they sum to ``L``; ``B`` is 1) each row sees itself alone; without, a batch row is one row.
    ``sliding_window`` limits how far back a token looks. Raises ``NotImplementedError`` for what SDPA cannot do.
    """
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None or attention_mask is not None:
        raise NotImplementedError("soft-capped scores, attention sinks and explicit masks are not supported here")
    lengths: Sequence[int] | None = kwargs.get("row_lengths")
    window: int | None = kwargs.get("sliding_window")
    if query.is_cuda and lengths is not None and not dropout and (half := _half_dtype(query)) is not None:
        return _varlen(query, key, value, lengths, scaling, window, half), None
    wanted = query.dtype
    # The CPU's flash kernel is slower backwards in bfloat16 than in float32, and less exact. What leaves is again of
    # the type that came in: without autocast the next matrix takes no other.
    with torch.autocast(query.device.type, enabled=query.is_cuda and torch.is_autocast_enabled("cuda")):
        if query.device.type == "cpu":
            query, key, value = query.float(), key.float(), value.float()
        if lengths is None or len(lengths) == 1:
            return _causal(query, key, value, dropout, scaling, window).transpose(1, 2).to(wanted), None
        rows = zip(*(torch.split(tensor, list(lengths), dim=2) for tensor in (query, key, value)), strict=True)
        outs = [_causal(q, k, v, dropout, scaling, window).transpose(1, 2) for q, k, v in rows]
        return torch.cat(outs, dim=1).to(wanted), None


def _causal(
    query: Tensor, key: Tensor, value: Tensor, dropout: float, scaling: float | None, window: int | None
) -> Tensor:
    length = query.shape[2]
    mask = None
    if window is not None and length > window:
        back = torch.arange(length, device=query.device)
        distance = back[:, None] - back[None, :]
        mask = (distance >= 0) & (distance < window)
    return functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _half_dtype(query: Tensor) -> torch.dtype | None:
    """The half-precision type that this pass computes in, if any."""
    if query.dtype in (torch.bfloat16, torch.float16):
        return query.dtype
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None


def _varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Sequence[int],
    scaling: float | None,
    window: int | None,
    dtype: torch.dtype,
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    repeat = query.shape[1] // key.shape[1]
    borders = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=query.device)
    longest = max(lengths)
    rows = (tensor[0].transpose(0, 1).to(dtype) for tensor in (query, key, value))
    q, k, v = rows
    if repeat > 1:
        k, v = k.repeat_interleave(repeat, dim=1), v.repeat_interleave(repeat, dim=1)
    back = -1 if window is None else window - 1
    out = varlen_attn(q, k, v, borders, borders, longest, longest, scale=scaling, window_size=(back, 0))
    assert isinstance(out, Tensor)
    return out[None]
