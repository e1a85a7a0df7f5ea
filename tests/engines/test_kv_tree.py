"""The tree of stored prefixes: each token once, nothing lost, nothing kept over the budget."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from firstchair.engines.kv_tree import Branch, KvTree, common_prefix, path_to


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def text_of(branch: Branch, visible: int) -> list[int]:
    """The tokens along a path, as attention reads them."""
    return [int(token) for node, seen in path_to(branch, visible) for token in node.tokens[:seen]]


@pytest.mark.parametrize(
    ("left", "right", "count"), [((1, 2, 3), (1, 2, 4), 2), ((), (1,), 0), ((1, 2), (1, 2, 3), 2), ((5,), (6,), 0)]
)
def test_common_prefix_counts_leading_equal_tokens(left, right, count):
    assert common_prefix(ids(*left), ids(*right)) == count


prompts = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=12), st.sampled_from(["a", "b"])),
    min_size=1,
    max_size=25,
)


@given(prompts)
def test_every_prompt_can_be_read_back_while_it_is_in_use(inserted):
    tree = KvTree(layers=1)
    places = []
    for tokens, group in inserted:
        branch, visible = tree.insert(ids(*tokens), group)
        branch.users += 1
        places.append((branch, visible, tokens))
    for branch, visible, tokens in places:
        assert text_of(branch, visible) == tokens
        assert tree.match(ids(*tokens)) == (branch, visible)
    assert tree.held_tokens == sum(branch.capacity for branch in tree.branches())


@given(prompts, st.integers(0, 30))
def test_shrinking_keeps_what_is_in_use_and_meets_the_budget_otherwise(inserted, budget):
    tree = KvTree(layers=1)
    used = []
    for number, (tokens, group) in enumerate(inserted):
        branch, visible = tree.insert(ids(*tokens), group)
        if number % 3 == 0:
            branch.users += 1
            used.append((branch, visible, tokens))
    met = tree.shrink_to(budget)
    assert met == (tree.held_tokens <= budget)
    assert met or used
    assert tree.held_tokens == sum(branch.capacity for branch in tree.branches())
    for branch, visible, tokens in used:
        assert text_of(branch, visible) == tokens


@settings(max_examples=30)
@given(prompts)
def test_stored_keys_survive_growth_and_shrinking(inserted):
    tree = KvTree(layers=1)

    def fill(branch: Branch) -> None:
        count = branch.length - branch.computed
        if count:
            # The key of a token is a number made from it, so that a misplaced key shows.
            numbers = torch.tensor(branch.tokens[branch.computed :], dtype=torch.float32)
            branch.write(0, branch.computed, numbers.view(1, count, 1), -numbers.view(1, count, 1))
            branch.computed = branch.length

    for tokens, group in inserted:
        branch, _ = tree.insert(ids(*tokens), group)
        fill(branch)
        tree.shrink_to(20)
    for branch in tree.branches():
        keys, values = branch.view(0, 0, branch.length)
        assert keys.flatten().tolist() == branch.tokens.tolist()
        assert values.flatten().tolist() == [-token for token in branch.tokens.tolist()]


def test_a_session_that_goes_on_extends_its_branch():
    tree = KvTree(layers=1)
    branch, _ = tree.insert(ids(1, 2, 3), "s")
    again, visible = tree.insert(ids(1, 2, 3, 4, 5), "s")
    assert again is branch
    assert (visible, tree.new_tokens(ids(1, 2, 3, 4, 5, 6))) == (5, 1)


def test_a_session_overwrites_its_own_rewritten_tail_but_not_another_sessions():
    tree = KvTree(layers=1)
    mine, _ = tree.insert(ids(1, 2, 3, 4), "mine")
    assert tree.insert(ids(1, 2, 9), "mine") == (mine, 3)
    assert mine.tokens.tolist() == [1, 2, 9]
    other, visible = tree.insert(ids(1, 2, 7, 7), "other")
    assert other is not mine
    assert (other.offset, visible) == (2, 2)
    assert mine.tokens.tolist() == [1, 2, 9]


def test_a_tail_in_use_is_not_overwritten():
    tree = KvTree(layers=1)
    branch, _ = tree.insert(ids(1, 2, 3, 4), "s")
    branch.users += 1
    beside, _ = tree.insert(ids(1, 2, 9), "s")
    assert beside is not branch
    assert text_of(branch, 4) == [1, 2, 3, 4]


def test_the_least_recently_used_branch_goes_first():
    tree = KvTree(layers=1)
    old, _ = tree.insert(ids(1, 1, 1), "old")
    new, _ = tree.insert(ids(2, 2, 2), "new")
    tree.touch(old)
    assert tree.shrink_to(4)
    assert list(tree.branches()) == [old]
    assert new not in tree.root.children.values()
