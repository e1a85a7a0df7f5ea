"""Blocks: every query meets every key that it sees exactly once, and nothing else."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firstchair.engines import attention_plan
from firstchair.engines.attention_plan import plan_attention
from firstchair.engines.kv_tree import Branch, path_to


def random_paths(draw: random.Random, branches: int, count: int):
    """Paths to random depths of a random tree."""
    nodes = [Branch(0, None, 0, "", 1)]
    for number in range(1, branches + 1):
        parent = draw.choice(nodes)
        node = Branch(number, parent, draw.randint(0, parent.length), "", 1)
        node.length = draw.randint(1, 9)
        nodes.append(node)
    paths = []
    for _ in range(count):
        node = draw.choice(nodes)
        paths.append(path_to(node, draw.randint(0, node.length)))
    return paths


@pytest.mark.parametrize("free_waste", [0, 20, 100_000])
@given(seed=st.integers(0, 10_000))
def test_each_query_meets_each_visible_key_once(monkeypatch_free, free_waste, seed):
    monkeypatch_free(free_waste)
    draw = random.Random(seed)
    paths = random_paths(draw, draw.randint(1, 6), draw.randint(1, 12))
    counts = [draw.randint(1, 3) for _ in paths]
    plan = plan_attention(paths, counts)
    assert sorted(plan.order) == list(range(len(paths)))
    owner = [index for index in plan.order for _ in range(counts[index])]
    met: list[Counter] = [Counter() for _ in owner]
    for block in plan.blocks:
        assert block.visible[0] == block.end - block.start or block.visible[0] > 0
        assert min(block.visible) >= 1
        assert list(block.visible) == sorted(block.visible, reverse=True)
        for query, seen in zip(range(block.first, block.last), block.visible, strict=True):
            met[query].update((block.branch.branch_id, block.start + key) for key in range(seen))
    for query, index in enumerate(owner):
        expected = Counter((branch.branch_id, key) for branch, seen in paths[index] for key in range(seen))
        assert met[query] == expected


@pytest.fixture(scope="module")
def monkeypatch_free():
    """Sets how much masked work a block may carry."""
    before = attention_plan.FREE_WASTE

    def change(value: int) -> None:
        attention_plan.FREE_WASTE = value

    yield change
    attention_plan.FREE_WASTE = before


@given(seed=st.integers(0, 10_000))
def test_blocks_of_one_level_share_no_query(seed):
    draw = random.Random(seed)
    plan = plan_attention(random_paths(draw, 5, 10))
    seen = set()
    for block in plan.blocks:
        for query in range(block.first, block.last):
            assert (block.level, query) not in seen
            seen.add((block.level, query))
        assert block.level < plan.levels


def test_decision_points_of_one_session_are_one_masked_block():
    branch = Branch(1, None, 0, "", 1)
    branch.length = 50
    plan = plan_attention([path_to(branch, 10), path_to(branch, 50), path_to(branch, 30)])
    (block,) = plan.blocks
    assert plan.order == (1, 2, 0)
    assert block.visible == (50, 30, 10)
    mask = block.mask(2, torch.float32, torch.device("cpu"))
    assert mask.shape == (1, 1, 6, 50)
    assert (mask[0, 0] == 0).sum(-1).tolist() == [50, 50, 30, 30, 10, 10]


def test_a_long_tail_that_few_see_is_a_block_of_its_own():
    shared = Branch(1, None, 0, "", 1)
    shared.length = 5000
    plan = plan_attention([path_to(shared, 1000)] * 100 + [path_to(shared, 5000)])
    assert [(b.start, b.end, b.last - b.first) for b in plan.blocks] == [(0, 1000, 101), (1000, 5000, 1)]
    assert all(block.mask(1, torch.float32, torch.device("cpu")) is None for block in plan.blocks)
