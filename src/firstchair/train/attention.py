"""Attention inside each row of a packed batch: no mask is built, no token of another row is looked at.

Registered with transformers under ``NAME``; the model hands ``segments`` down to it untouched. On a CPU every segment
is one causal SDPA call, which skips the upper triangle and all padding; where rows share their beginning, what
descends from it looks back at it in one more call (see ``prefixes``). On CUDA in half precision the rows go through
one variable-length flash kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from firstchair.train.prefixes import Segment

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

    With ``segments`` (they fill ``L``; ``B`` is 1) a token sees its own segment and those that it descends from;
    without, a batch row is one row. ``sliding_window`` limits how far back a token looks. Raises
    ``NotImplementedError`` for what the kernels cannot do.
    """
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None or attention_mask is not None:
        raise NotImplementedError("soft-capped scores, attention sinks and explicit masks are not supported here")
    segments: Sequence[Segment] = kwargs.get("segments") or ()
    window: int | None = kwargs.get("sliding_window")
    shared = any(segment.below > segment.end for segment in segments)
    if shared and (query.is_cuda or dropout or (window is not None and query.shape[2] > window)):
        raise NotImplementedError("shared beginnings need a CPU, no attention dropout and no sliding window")
    if query.is_cuda and segments and not dropout and (half := _half_dtype(query)) is not None:
        lengths = [segment.end - segment.start for segment in segments]
        return _varlen(query, key, value, lengths, scaling, window, half), None
    wanted = query.dtype
    # The CPU's flash kernel is slower backwards in bfloat16 than in float32, and less exact. What leaves is again of
    # the type that came in: without autocast the next matrix takes no other.
    with torch.autocast(query.device.type, enabled=query.is_cuda and torch.is_autocast_enabled("cuda")):
        if query.device.type == "cpu":
            query, key, value = query.float(), key.float(), value.float()
        if shared:
            return _tree(query, key, value, segments, scaling).transpose(1, 2).to(wanted), None
        if len(segments) <= 1:
            return _causal(query, key, value, dropout, scaling, window).transpose(1, 2).to(wanted), None
        lengths = [segment.end - segment.start for segment in segments]
        rows = zip(*(torch.split(tensor, lengths, dim=2) for tensor in (query, key, value)), strict=True)
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


def _tree(query: Tensor, key: Tensor, value: Tensor, segments: Sequence[Segment], scaling: float | None) -> Tensor:
    repeat = query.shape[1] // key.shape[1]
    if repeat > 1:
        key, value = key.repeat_interleave(repeat, dim=1), value.repeat_interleave(repeat, dim=1)
    out: Tensor = _TreeAttention.apply(query, key, value, tuple(segments), scaling)  # type: ignore[no-untyped-call]
    return out


_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _TreeAttention(torch.autograd.Function):
    """Causal attention inside every segment, and full attention from all that descends from a segment to it.

    The parts of a token's softmax are put together by their normalisers (Dao et al. 2022, FlashAttention, section
    3.1, across calls): with l the log of the sum of exponentials, out = Σ exp(l_part − l) · out_part. Given the whole
    out and l, the kernel's backward pass of each part gives that part's share of the gradient, so nothing is stored
    but these two.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, segments: tuple[Segment, ...], scaling: float | None
    ) -> Tensor:
        out, log_sum = torch.empty_like(query), query.new_empty(query.shape[:3])
        for start, end, _ in segments:
            q, k, v = (tensor[:, :, start:end] for tensor in (query, key, value))
            out[:, :, start:end], log_sum[:, :, start:end] = _flash(q, k, v, 0.0, True, scale=scaling)
        for start, end, below in segments:
            if below > end:
                k, v = key[:, :, start:end], value[:, :, start:end]
                far, far_sum = _flash(query[:, :, end:below], k, v, 0.0, False, scale=scaling)
                near, near_sum = out[:, :, end:below], log_sum[:, :, end:below]
                both = torch.logaddexp(near_sum, far_sum)
                near.mul_((near_sum - both).exp_()[..., None]).add_(far * (far_sum - both).exp_()[..., None])
                near_sum.copy_(both)
        ctx.save_for_backward(query, key, value, out, log_sum)
        ctx.segments, ctx.scaling = segments, scaling
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, log_sum = ctx.saved_tensors
        found = [torch.empty_like(tensor) for tensor in (query, key, value)]
        for start, end, _ in ctx.segments:
            parts = (tensor[:, :, start:end] for tensor in (grad, query, key, value, out, log_sum))
            for total, part in zip(found, _flash_backward(*parts, 0.0, True, scale=ctx.scaling), strict=True):
                total[:, :, start:end] = part
        for start, end, below in ctx.segments:
            if below > end:
                g, q, o, s = (tensor[:, :, end:below] for tensor in (grad, query, out, log_sum))
                k, v = key[:, :, start:end], value[:, :, start:end]
                d_query, d_key, d_value = _flash_backward(g, q, k, v, o, s, 0.0, False, scale=ctx.scaling)
                found[0][:, :, end:below] += d_query
                found[1][:, :, start:end] += d_key
                found[2][:, :, start:end] += d_value
        return *found, None, None


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
