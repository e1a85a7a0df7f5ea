"""Which queries attend to which stored keys, as few large rectangles instead of one row each.

Queries are put in an order in which all that see one branch stand together, those that see more of it first.
A branch is then read by blocks: keys ``start`` to ``end`` for a run of queries. Every query of a block sees at
least one of its keys; a mask hides the rest where cutting further would cost more than it saves::

    keys of a session's branch →
    decision 5  ████████████████████░░     ░ masked
    decision 4  ███████████████░░░░░░░
    decision 3  ██████████│                second block: decisions 5 and 4 only
    decision 2  ██████████│
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from firstchair.engines.kv_tree import Branch, Path

FREE_WASTE = 4096
"""Masked query-key pairs that cost about as much as the launch of one more block (measured on a CPU core)."""

WASTE_SHARE = 0.3
"""Largest share of masked pairs in a block beyond ``FREE_WASTE``."""


@dataclass(slots=True)
class Block:
    """Queries ``first`` to ``last`` (in rows of the batch) attend to keys ``start`` to ``end`` of ``branch``."""

    branch: Branch
    start: int
    end: int
    first: int
    last: int
    visible: tuple[int, ...]
    """For each query of the block, how many keys from ``start`` on it sees, at most ``end - start``."""
    level: int = 0
    """Blocks of one level share no query, so one merge serves them all."""
    masks: dict[int, Tensor] = field(default_factory=dict)

    def mask(self, repeat: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """Additive mask ``[1, 1, queries * repeat, keys]``, each query's row ``repeat`` times; ``None`` if full."""
        width = self.end - self.start
        if self.visible[-1] == width:
            return None
        if repeat not in self.masks:
            visible = torch.tensor(self.visible, device=device).repeat_interleave(repeat)
            hidden = torch.arange(width, device=device)[None, :] >= visible[:, None]
            mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
            self.masks[repeat] = mask[None, None]
        return self.masks[repeat]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """``order[i]`` is the input place of what stands at place ``i``; blocks count queries in that order."""

    order: tuple[int, ...]
    blocks: tuple[Block, ...]
    levels: int


def plan_attention(paths: Sequence[Path], counts: Sequence[int] | None = None) -> AttentionPlan:
    """Order ``paths`` and cut what they see into blocks.

    ``counts[i]`` queries stand behind path ``i`` (1 each by default); all of them see the whole path.
    """
    counts = counts or [1] * len(paths)
    keys = [tuple(part for branch, visible in path for part in (branch.branch_id, -visible)) for path in paths]
    order = sorted(range(len(paths)), key=keys.__getitem__)
    first_query, total = [], 0
    for index in order:
        first_query.append(total)
        total += counts[index]
    first_query.append(total)
    blocks: list[Block] = []
    depth, places = 0, list(range(len(order)))
    while places:
        places = [place for place in places if len(paths[order[place]]) > depth]
        for run in _runs(places, [paths[order[place]][depth][0].branch_id for place in places]):
            branch = paths[order[run[0]]][depth][0]
            visible = [paths[order[place]][depth][1] for place in run]
            blocks += _cut(branch, visible, [counts[order[place]] for place in run], first_query[run[0]])
        depth += 1
    return AttentionPlan(tuple(order), tuple(blocks), _assign_levels(blocks, total))


def _runs(places: list[int], names: list[int]) -> list[list[int]]:
    """``places`` cut where the name changes."""
    runs: list[list[int]] = []
    for index, place in enumerate(places):
        if index == 0 or names[index] != names[index - 1]:
            runs.append([])
        runs[-1].append(place)
    return runs


def _cut(branch: Branch, visible: list[int], counts: list[int], first: int) -> list[Block]:
    """Blocks of one branch; ``visible`` is sorted, largest first, and so each block's queries are a prefix."""
    blocks: list[Block] = []
    start, rows = 0, len(visible)
    while rows:
        end, useful, waste = start, 0, 0
        # Raise the end to each next larger visible length while the pairs masked by that stay few.
        row = rows
        queries_left, queries_done = sum(counts[:rows]), 0
        while row:
            candidate = visible[row - 1]
            more_useful = (candidate - end) * queries_left
            more_waste = (candidate - end) * queries_done
            if end > start and waste + more_waste > max(FREE_WASTE, WASTE_SHARE * (useful + more_useful)):
                break
            end, useful, waste = candidate, useful + more_useful, waste + more_waste
            while row and visible[row - 1] == candidate:
                row -= 1
                queries_done += counts[row]
                queries_left -= counts[row]
        seen = tuple(
            min(length, end) - start
            for length, count in zip(visible[:rows], counts[:rows], strict=True)
            for _ in range(count)
        )
        blocks.append(Block(branch, start, end, first, first + len(seen), seen))
        start = end
        while rows and visible[rows - 1] <= start:
            rows -= 1
    return blocks


def _assign_levels(blocks: list[Block], queries: int) -> int:
    level = [0] * queries
    for block in blocks:
        block.level = max(level[block.first : block.last])
        level[block.first : block.last] = [block.level + 1] * (block.last - block.first)
    return max(level, default=0)
