"""Packed attention against softmax written out, piece by piece and whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from firstchair.engines.kv_tree import Branch, path_to
from firstchair.engines.packed_attention import (
    DecodePass,
    Pieces,
    Span,
    SpanPass,
    UnsupportedAttention,
    attending,
    packed_attention,
    partial_attention,
)

HEADS, KV_HEADS, DIM, SCALE = 6, 2, 8, 0.3
CPU = torch.device("cpu")


def reference(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One query ``[heads, dim]`` over ``[kv_heads, n, dim]``, by the definition, in float64."""
    keys = keys.double().repeat_interleave(HEADS // KV_HEADS, 0)
    values = values.double().repeat_interleave(HEADS // KV_HEADS, 0)
    weights = torch.softmax((keys @ query.double()[:, :, None])[..., 0] * SCALE, -1)
    return (weights[:, None] @ values)[:, 0]


def filled(branch_id: int, parent: Branch | None, offset: int, length: int) -> Branch:
    branch = Branch(branch_id, parent, offset, "", 1)
    branch.reserve(length)
    branch.push(np.zeros(length, np.int32))
    branch.write(0, 0, torch.randn(KV_HEADS, length, DIM), torch.randn(KV_HEADS, length, DIM))
    branch.computed = length
    return branch


def seen(branch: Branch, visible: int) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [node.view(0, 0, count) for node, count in path_to(branch, visible)]
    empty = torch.zeros(KV_HEADS, 0, DIM)
    return (
        torch.cat([empty, *(keys[0] for keys, _ in parts)], 1),
        torch.cat([empty, *(values[0] for _, values in parts)], 1),
    )


@pytest.mark.parametrize("causal", [False, True])
def test_the_cpu_kernel_and_the_written_out_formula_agree(causal):
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8)
    out, lse = partial_attention(query, key, value, SCALE, causal=causal)
    # A value of another width goes the general way.
    wide, wide_lse = partial_attention(query, key, torch.cat([value, value], -1), SCALE, causal=causal)
    assert torch.allclose(out, wide[..., :8], atol=1e-5)
    assert torch.allclose(lse, wide_lse, atol=1e-5)


def test_the_union_of_pieces_is_attention_over_all_keys():
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
    pieces = Pieces(3, (2, 4), 8, query)
    for level, (start, end) in enumerate([(0, 3), (3, 9)]):
        out, lse = partial_attention(query, key[:, :, start:end], value[:, :, start:end], SCALE)
        pieces.outs[level], pieces.lses[level] = out[0], lse[0]
    whole, _ = partial_attention(query, key, value, SCALE)
    # The third level was never written: weight 0.
    assert torch.allclose(pieces.union(), whole[0], atol=1e-6)


def test_spans_see_their_path_and_themselves_up_to_each_token():
    torch.manual_seed(1)
    trunk = filled(1, None, 0, 12)
    side = filled(2, trunk, 5, 4)
    spans = [
        Span(np.zeros(3, np.int32), 12, path_to(trunk, 12)),
        Span(np.zeros(2, np.int32), 9, path_to(side, 4)),
        Span(np.zeros(4, np.int32), 0, ()),
    ]
    attention = SpanPass(spans, CPU)
    query = torch.randn(1, HEADS, 9, DIM)
    key, value = torch.randn(1, KV_HEADS, 9, DIM), torch.randn(1, KV_HEADS, 9, DIM)
    for _ in range(2):  # the buffers are used again by the next layer
        out = attention.attend(0, query, key, value, SCALE)
    assert attention.position_ids.shape == (1, 9)
    for place, (first, last) in zip(attention.plan.order, attention.bounds, strict=True):
        branch, visible = [(trunk, 12), (side, 4), (trunk, 0)][place]
        keys, values = seen(branch, visible)
        for token in range(first, last):
            wanted = reference(
                query[0, :, token],
                torch.cat([keys, key[0, :, first : token + 1]], 1),
                torch.cat([values, value[0, :, first : token + 1]], 1),
            )
            assert torch.allclose(out[0, token].double(), wanted, atol=1e-5)


@pytest.mark.parametrize("lengths", [(0, 0, 0), (2, 0, 1)])
def test_rows_see_their_path_and_their_own_tokens(lengths):
    torch.manual_seed(2)
    trunk = filled(1, None, 0, 12)
    side = filled(2, trunk, 5, 4)
    ends = [(trunk, 12), (side, 4), (trunk, 0)]
    attention = DecodePass([path_to(*end) for end in ends], 6, 1, CPU)
    ends = [ends[index] for index in attention.plan.order]
    attention.set_lengths(lengths)
    own = [(torch.zeros(KV_HEADS, length, DIM), torch.zeros(KV_HEADS, length, DIM)) for length in lengths]
    for _ in range(3):
        query = torch.randn(1, HEADS, 3, DIM)
        key, value = torch.randn(1, KV_HEADS, 3, DIM), torch.randn(1, KV_HEADS, 3, DIM)
        attention.step()
        out = attention.attend(0, query, key, value, SCALE)
        attention.advance()
        for row, end in enumerate(ends):
            own[row] = (
                torch.cat([own[row][0], key[0, :, row, None]], 1),
                torch.cat([own[row][1], value[0, :, row, None]], 1),
            )
            keys, values = seen(*end)
            wanted = reference(
                query[0, :, row], torch.cat([keys, own[row][0]], 1), torch.cat([values, own[row][1]], 1)
            )
            assert torch.allclose(out[0, row].double(), wanted, atol=1e-5)
    for row in range(3):
        stored = attention.own_layers(row, lengths[row] + 3)[0]
        assert torch.equal(stored[0], own[row][0])


def test_attention_that_packing_does_not_know_is_refused_by_name():
    module = torch.nn.Module()
    module.layer_idx = 0
    tensors = (torch.zeros(1, 2, 1, 4),) * 3
    attention = DecodePass([()], 4, 1, CPU)
    attention.set_lengths([0])
    attention.step()
    with attending(attention), pytest.raises(UnsupportedAttention, match="sliding_window"):
        packed_attention(module, *tensors, None, sliding_window=4)
    with pytest.raises(UnsupportedAttention):
        packed_attention(module, *tensors, None)
