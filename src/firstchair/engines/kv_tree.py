"""Keys and values of token prefixes, kept once each, in a tree.

A branch is a run of consecutive tokens with their keys and values. It hangs ``offset`` tokens into its parent:
it continues the parent's first ``offset`` tokens and sees nothing behind them. A prompt ends anywhere inside a
branch; what it sees is the path from the root, a visible length on each branch of it::

    root ── [system, tools, session A .......]        offset of B in A's branch = the common prefix
                    └── [session B ....]              a decision point of B = (this branch, visible length)

No tensor is copied when a prefix is shared, and a branch is never split: attention reads the visible part.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from firstchair.engines.jobs import Tokens


def common_prefix(left: Tokens, right: Tokens) -> int:
    """How many leading tokens are equal."""
    count = min(len(left), len(right))
    different = left[:count] != right[:count]
    return int(different.argmax()) if different.any() else count


class Branch:
    """A run of tokens. ``keys[layer]`` and ``values[layer]`` are ``[kv_heads, capacity, head_dim]``."""

    __slots__ = (
        "_tokens",
        "branch_id",
        "capacity",
        "children",
        "computed",
        "group",
        "keys",
        "last_use",
        "length",
        "offset",
        "parent",
        "start",
        "users",
        "values",
    )

    def __init__(self, branch_id: int, parent: Branch | None, offset: int, group: str, layers: int):
        self.branch_id, self.parent, self.offset, self.group = branch_id, parent, offset, group
        self.start: int = parent.start + offset if parent else 0
        """Position of the first token in the whole sequence."""
        self.length = 0
        self.computed = 0
        """Tokens whose keys and values are in; the rest waits for prefill."""
        self.capacity = 0
        self.children: dict[tuple[int, int], Branch] = {}
        """By offset and first token; the first token differs from this branch's own at that offset."""
        self.users = 0
        """Rows in flight that end in this branch."""
        self.last_use = 0
        self._tokens: Tokens = np.zeros(0, np.int32)
        self.keys: list[Tensor | None] = [None] * layers
        self.values: list[Tensor | None] = [None] * layers

    @property
    def tokens(self) -> Tokens:
        """The tokens, ``[length]`` int32."""
        return self._tokens[: self.length]

    def reserve(self, capacity: int) -> None:
        """Make room for ``capacity`` tokens, keeping what is there; also shrinks."""
        if capacity == self.capacity:
            return
        keep = min(self.computed, capacity)
        for store in (self.keys, self.values):
            for layer, old in enumerate(store):
                if old is not None:
                    new = old.new_empty((old.shape[0], capacity, old.shape[2]))
                    new[:, :keep] = old[:, :keep]
                    store[layer] = new
        tokens = np.zeros(capacity, np.int32)
        kept = min(self.length, capacity)
        tokens[:kept] = self._tokens[:kept]
        self._tokens, self.capacity = tokens, capacity

    def push(self, tokens: Tokens) -> None:
        """Append tokens whose keys and values come later; the capacity must suffice."""
        self._tokens[self.length : self.length + len(tokens)] = tokens
        self.length += len(tokens)

    def truncate(self, length: int) -> None:
        """Forget what stands behind ``length``."""
        self.length, self.computed = length, min(self.computed, length)

    def write(self, layer: int, at: int, keys: Tensor, values: Tensor) -> None:
        """Store ``[kv_heads, n, head_dim]`` of one layer at tokens ``at`` to ``at + n``."""
        own_keys, own_values = self.keys[layer], self.values[layer]
        if own_keys is None or own_values is None:
            own_keys = keys.new_empty((keys.shape[0], self.capacity, keys.shape[2]))
            own_values = values.new_empty((values.shape[0], self.capacity, values.shape[2]))
            self.keys[layer], self.values[layer] = own_keys, own_values
        own_keys[:, at : at + keys.shape[1]] = keys
        own_values[:, at : at + values.shape[1]] = values

    def view(self, layer: int, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values of tokens ``start`` to ``end``, ``[1, kv_heads, end - start, head_dim]``, not copied."""
        keys, values = self.keys[layer], self.values[layer]
        assert keys is not None, "read before prefill"
        assert values is not None, "read before prefill"
        return keys[None, :, start:end], values[None, :, start:end]


Path = tuple[tuple[Branch, int], ...]
"""Branches from the root on, each with the number of its tokens that are visible (at least 1)."""


def path_to(branch: Branch, visible: int) -> Path:
    """What a query sees that stands right behind the first ``visible`` tokens of ``branch``."""
    steps: list[tuple[Branch, int]] = []
    node: Branch | None = branch
    while node is not None:
        if visible > 0:
            steps.append((node, visible))
        visible, node = node.offset, node.parent
    return tuple(reversed(steps))


class KvTree:
    """All branches of one set of weights, within a budget of tokens."""

    def __init__(self, layers: int):
        self._layers = layers
        self._clock = 0
        self._next_id = 1
        self.root = Branch(0, None, 0, "", layers)
        self.held_tokens = 0
        """Capacity of all branches: what the memory is spent on."""

    def match(self, tokens: Tokens) -> tuple[Branch, int]:
        """The longest stored prefix of ``tokens``: the branch it ends in and the visible length there."""
        branch, local = self.root, 0
        while branch.start + local < len(tokens):
            child = branch.children.get((local, int(tokens[branch.start + local])))
            if child is None:
                break
            branch, local = child, common_prefix(child.tokens, tokens[child.start :])
        return branch, local

    def insert(self, tokens: Tokens, group: str, *, slack: int = 0) -> tuple[Branch, int]:
        """Store ``tokens`` (keys and values still to be computed) and return where they end.

        ``slack`` tokens of room are added where a branch grows. A tail that only the same group's past used is
        overwritten; a tail of others stays and the new tokens become a branch beside it.
        """
        branch, local = self.match(tokens)
        rest = tokens[branch.start + local :]
        if len(rest):
            branch = self._grown(branch, local, rest, group, slack)
            local = branch.length
        self.touch(branch)
        return branch, local

    def _grown(self, branch: Branch, local: int, rest: Tokens, group: str, slack: int) -> Branch:
        if branch is self.root or not self._may_grow(branch, local, group):
            child = Branch(self._next_id, branch, local, group, self._layers)
            self._next_id += 1
            branch.children[(local, int(rest[0]))] = child
            branch, local = child, 0
        branch.truncate(local)
        branch.group = group
        self._ensure(branch, local + len(rest), slack)
        branch.push(rest)
        return branch

    @staticmethod
    def _may_grow(branch: Branch, local: int, group: str) -> bool:
        if local == branch.length:
            return True
        deepest = max((offset for offset, _ in branch.children), default=0)
        return branch.group == group and branch.users == 0 and deepest <= local

    def _ensure(self, branch: Branch, need: int, slack: int) -> None:
        if need > branch.capacity:
            before = branch.capacity
            # A branch that grows once will grow again (an episode): half as much again, so copies stay linear.
            branch.reserve(max(need + slack, before + before // 2))
            self.held_tokens += branch.capacity - before

    def append(self, branch: Branch, tokens: Tokens, layers: list[tuple[Tensor, Tensor]]) -> None:
        """Add computed tokens at the end of ``branch``; ``layers`` holds ``[kv_heads, n, head_dim]`` pairs."""
        assert branch.computed == branch.length, "append behind tokens that wait for prefill"
        self._ensure(branch, branch.length + len(tokens), 0)
        for layer, (keys, values) in enumerate(layers):
            branch.write(layer, branch.length, keys, values)
        branch.push(tokens)
        branch.computed = branch.length

    def new_tokens(self, tokens: Tokens) -> int:
        """How many of ``tokens`` are not stored yet."""
        branch, local = self.match(tokens)
        return len(tokens) - branch.start - local

    def touch(self, branch: Branch) -> None:
        """Mark the path to ``branch`` as used now."""
        self._clock += 1
        node: Branch | None = branch
        while node is not None:
            node.last_use = self._clock
            node = node.parent

    def branches(self) -> Iterator[Branch]:
        """Every branch but the root, parents first."""
        stack = list(self.root.children.values())
        while stack:
            branch = stack.pop()
            yield branch
            stack.extend(branch.children.values())

    def shrink_to(self, budget: int) -> bool:
        """Drop what nothing in flight needs, least recently used first, until ``held_tokens <= budget``."""
        while self.held_tokens > budget:
            idle = [branch for branch in self.branches() if branch.users == 0 and not _tight(branch)]
            if not idle:
                return False
            for branch in sorted(idle, key=lambda branch: branch.last_use):
                if self.held_tokens <= budget:
                    break
                self._drop_tail(branch)
        return True

    def _drop_tail(self, branch: Branch) -> None:
        before = branch.capacity
        if branch.children:
            branch.truncate(min(branch.length, _needed(branch)))
            branch.reserve(_needed(branch))
            self.held_tokens += branch.capacity - before
            return
        parent = branch.parent
        assert parent is not None
        parent.children = {key: child for key, child in parent.children.items() if child is not branch}
        self.held_tokens -= before

    def clear(self) -> None:
        """Forget everything; nothing may be in flight."""
        self.root = Branch(0, None, 0, "", self._layers)
        self.held_tokens = 0


def _needed(branch: Branch) -> int:
    return max((offset for offset, _ in branch.children), default=0)


def _tight(branch: Branch) -> bool:
    """Whether a branch with children already holds no more than they need."""
    return bool(branch.children) and branch.capacity <= _needed(branch)
