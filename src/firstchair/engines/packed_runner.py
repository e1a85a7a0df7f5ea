"""Many requests together: shared prefixes are prefilled once, replies are decoded in one wide batch.

waiting jobs ──admit──► KV tree (one prefill of what is new) ──► row batch ──step──► finished
     ▲                        ▲                                     │
     └── no room in the budget└──── keys and values of the reply ◄──┘ (for the next step of its session)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from firstchair.engines.base import ErrorKind
from firstchair.engines.jobs import Job, Tokens
from firstchair.engines.kv_tree import Branch, KvTree, path_to
from firstchair.engines.packed_attention import Span, SpanPass, attending
from firstchair.engines.row_batch import Row, RowBatch
from firstchair.engines.runner import Finisher
from firstchair.engines.scoring import ScoreItem
from firstchair.engines.weights import LoadedModel


@dataclass(frozen=True)
class Limits:
    """What bounds memory and latency."""

    max_batch_tokens: int
    """Tokens whose keys and values may be held at once: stored prefixes plus replies in flight."""
    max_cached_tokens: int
    """Of these, how many may stay when nothing is in flight; 0 turns the cache across calls off."""
    max_rows: int = 512
    """Replies decoded together."""
    prefill_tokens: int = 2048
    """Prompt tokens of one forward pass."""


class PackedRunner:
    """Plans, prefills and decodes; see ``runner.Runner``."""

    def __init__(self, loaded: LoadedModel, finisher: Finisher, limits: Limits):
        self._loaded, self._finisher, self._limits = loaded, finisher, limits
        self._tree = KvTree(loaded.layers)
        self._batch = RowBatch(loaded)
        self._waiting: list[Job] = []
        """In the order of admission, the next one last."""
        self._pending: list[Branch] = []
        """Branches with tokens to prefill, parents first."""

    @property
    def busy(self) -> bool:
        """Whether jobs wait or run."""
        return bool(self._waiting) or bool(self._batch.rows)

    @property
    def cached_tokens(self) -> int:
        """Tokens that the tree holds room for."""
        return self._tree.held_tokens

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue ``jobs``: groups in order of arrival, the longest prompt of a group first.

        The longest prompt of a session holds the others as prefixes, so the first one builds the whole branch.
        """
        first_seen: dict[str, int] = {}
        for place, job in enumerate(jobs):
            first_seen.setdefault(_group(job), place)
        ordered = sorted(jobs, key=lambda job: (first_seen[_group(job)], -len(job.prompt)))
        self._waiting = ordered[::-1] + self._waiting

    def jobs(self) -> list[Job]:
        """Every job that waits or runs."""
        return self._waiting[::-1] + [row.job for row in self._batch.rows if not row.job.finished]

    def step(self) -> None:
        """Admit what fits, or decode one token of every row."""
        live = self._retire()
        # Laying the batch out again costs a copy of the rows' own keys: wait until a quarter of it is free.
        if self._waiting and live <= self._limits.max_rows * 3 // 4 and self._admit(live):
            return
        if live == 0:
            self._batch.rebuild()
            self._tree.shrink_to(self._limits.max_cached_tokens)
            return
        if self._batch.full or live <= len(self._batch.rows) * 3 // 4:
            self._batch.rebuild()
        self._decode()

    def _retire(self) -> int:
        """End cancelled jobs; returns how many rows are live."""
        if self._finisher.take_cancels():
            self._waiting = [job for job in self._waiting if not self._finisher.drop_cancelled(job)]
            for place, row in enumerate(self._batch.rows):
                if row.job.cancelled and not row.job.finished:
                    self._finisher.drop_cancelled(row.job)
                    self._leave(place, row)
        return sum(not row.job.finished for row in self._batch.rows)

    def _admit(self, live: int) -> bool:
        """Take waiting jobs into the tree and the batch as far as the budget goes; whether any came in."""
        reserved = sum(row.need for row in self._batch.rows if not row.job.finished)
        rows: list[Row] = []
        while self._waiting and live + len(rows) < self._limits.max_rows:
            job = self._waiting[-1]
            context = job.prompt[:-1]
            new = self._tree.new_tokens(context)
            budget = self._limits.max_batch_tokens - reserved - job.limit - new
            if not self._shrink_around(context, budget):
                if live or rows:
                    break
                self._refuse(self._waiting.pop(), new)
                continue
            self._waiting.pop()
            matched, local = self._tree.match(context)
            job.cached_tokens = matched.start + local
            slack = job.limit if self._keeps(job) else 0
            branch, visible = self._tree.insert(context, _group(job), slack=slack)
            branch.users += 1
            if branch.computed < branch.length and branch not in self._pending:
                self._pending.append(branch)
            rows.append(Row(job, branch, visible))
            reserved += job.limit
        if rows:
            self._prefill()
            self._batch.rebuild(rows)
        return bool(rows)

    def _shrink_around(self, context: Tokens, budget: int) -> bool:
        """Make room without dropping what ``context`` shares; whether there is room."""
        shared, _ = self._tree.match(context)
        shared.users += 1
        try:
            return self._tree.shrink_to(budget)
        finally:
            shared.users -= 1

    def _refuse(self, job: Job, new: int) -> None:
        job.refuse(
            ErrorKind.CONTEXT_OVERFLOW,
            f"{ErrorKind.CONTEXT_OVERFLOW}: {new:,} prompt and {job.limit:,} reply tokens do not fit "
            f"max_batch_tokens={self._limits.max_batch_tokens:,}; raise it or shorten the request",
        )

    def _keeps(self, job: Job) -> bool:
        return self._limits.max_cached_tokens > 0 and bool(job.request.group)

    def _prefill(self) -> None:
        """Compute keys and values of every pending token, parents first, a bounded number a pass."""
        spans: list[Span] = []
        room = self._limits.prefill_tokens
        for branch in self._pending:
            done = branch.computed
            while done < branch.length:
                take = min(room, branch.length - done)
                spans.append(
                    Span(
                        branch.tokens[done : done + take],
                        branch.start + done,
                        path_to(branch, done),
                        branch,
                        done,
                    )
                )
                done += take
                room -= take
                if room == 0:
                    self._run(spans)
                    spans, room = [], self._limits.prefill_tokens
        if spans:
            self._run(spans)
        self._pending.clear()

    def _run(self, spans: Sequence[Span], *, keep_logits: bool = False) -> tuple[SpanPass, Tensor]:
        attention = SpanPass(spans, self._loaded.device)
        with attending(attention):
            logits: Tensor = self._loaded.model(
                input_ids=attention.input_ids,
                position_ids=attention.position_ids,
                use_cache=False,
                # 0 keeps every position; prefill needs none, and 1 is the fewest.
                logits_to_keep=0 if keep_logits else 1,
            ).logits[0]
        for span in spans:
            if span.store is not None:
                span.store.computed = span.store_at + len(span.tokens)
        return attention, logits

    def _decode(self) -> None:
        batch = self._batch
        choice = batch.choose(batch.forward())
        tokens = choice.tokens
        for place, row in enumerate(batch.rows):
            if not row.job.finished:
                tokens[place] = self._finisher.accept(row.job, choice, place)
                if row.job.finished:
                    self._leave(place, row)
        batch.feed(tokens)

    def _leave(self, place: int, row: Row) -> None:
        """Let go of the row's branch; put the reply's keys and values there when its session may come again."""
        branch = row.branch
        branch.users -= 1
        at_end = row.visible == branch.length and branch.group == _group(row.job) and branch.users == 0
        if self._keeps(row.job) and at_end and row.own > 0:
            reply = np.array([row.job.prompt[-1], *row.job.ids], dtype=np.int32)[: row.own]
            self._tree.append(branch, reply, self._batch.own_layers(place))
            self._tree.touch(branch)

    def abandon(self) -> None:
        """Forget all jobs and everything stored."""
        self._waiting.clear()
        self._pending.clear()
        self._batch = RowBatch(self._loaded)
        self._tree.clear()

    def score(self, items: Sequence[ScoreItem]) -> list[tuple[float, ...]]:
        """Log-probabilities of each item's ids; prefixes are shared as in decoding."""
        scores: list[tuple[float, ...]] = [()] * len(items)
        order = sorted(range(len(items)), key=lambda index: (items[index].group, -len(items[index].prompt_ids)))
        while order:
            order = self._score_some(items, order, scores)
        self._tree.shrink_to(self._limits.max_cached_tokens)
        return scores

    def _score_some(self, items: Sequence[ScoreItem], order: list[int], scores: list[tuple[float, ...]]) -> list[int]:
        """Score as many items as the budget lets in at once; returns the rest."""
        taken: list[tuple[int, Span]] = []
        for index in order:
            item = items[index]
            context = np.array(item.prompt_ids[:-1], dtype=np.int32)
            if not self._tree.shrink_to(self._limits.max_batch_tokens - self._tree.new_tokens(context)) and taken:
                break
            branch, visible = self._tree.insert(context, item.group)
            branch.users += 1
            if branch.computed < branch.length and branch not in self._pending:
                self._pending.append(branch)
            read = np.array([item.prompt_ids[-1], *item.ids[:-1]], dtype=np.int32)
            taken.append((index, Span(read, len(item.prompt_ids) - 1, path_to(branch, visible))))
        self._prefill()
        while taken:
            some: list[tuple[int, Span]] = []
            used = 0
            while taken and (not some or used + len(taken[0][1].tokens) <= self._limits.prefill_tokens):
                some.append(taken.pop(0))
                used += len(some[-1][1].tokens)
            self._score_spans(items, some, scores)
        for branch in self._tree.branches():
            branch.users = 0
        return order[len([index for index in order if scores[index]]) :]

    def _score_spans(
        self, items: Sequence[ScoreItem], some: list[tuple[int, Span]], scores: list[tuple[float, ...]]
    ) -> None:
        attention, logits = self._run([span for _, span in some], keep_logits=True)
        logits = logits.float()
        wanted = np.concatenate([items[some[place][0]].ids for place in attention.plan.order])
        targets = torch.from_numpy(wanted.astype(np.int64)).to(logits.device)
        picked = (logits.gather(1, targets[:, None])[:, 0] - logits.logsumexp(-1)).tolist()
        for place, (first, last) in zip(attention.plan.order, attention.bounds, strict=True):
            scores[some[place][0]] = tuple(picked[first:last])


def _group(job: Job) -> str:
    return job.request.group
