"""One request at a time through transformers' own cache and attention.

The reference that packed decoding must equal token for token, and the way for models whose attention packed
decoding does not know (sliding windows, sinks, recurrent layers).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from firstchair.engines.jobs import Job
from firstchair.engines.runner import Finisher, choose
from firstchair.engines.sampling import Sampler
from firstchair.engines.scoring import ScoreItem
from firstchair.engines.weights import LoadedModel


class PlainRunner:
    """Serves jobs in order, each alone; see ``runner.Runner``."""

    def __init__(self, loaded: LoadedModel, finisher: Finisher):
        self._loaded, self._finisher = loaded, finisher
        self._waiting: deque[Job] = deque()
        self._job: Job | None = None
        self._cache: Any = None
        self._sampler = Sampler((), loaded.device)
        loaded.model.set_attn_implementation(loaded.attention)

    @property
    def busy(self) -> bool:
        """Whether jobs wait or run."""
        return self._job is not None or bool(self._waiting)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue ``jobs``."""
        self._waiting.extend(jobs)

    def jobs(self) -> list[Job]:
        """Every job that waits or runs."""
        return [*([self._job] if self._job else []), *self._waiting]

    def step(self) -> None:
        """Prefill the next job, or sample one token of the current one."""
        if self._job is None:
            self._job = self._waiting.popleft()
            self._cache = None
            self._sampler = Sampler([self._job.request.sampling], self._loaded.device)
        job = self._job
        if not self._finisher.drop_cancelled(job):
            logits = self._forward([job.ids[-1]] if job.ids else job.prompt.tolist(), len(job.ids), keep=1)
            self._finisher.accept(job, choose([job], logits, self._sampler), 0)
        if job.finished:
            self._job, self._cache = None, None

    def _forward(self, tokens: Sequence[int], sampled: int, keep: int) -> Tensor:
        device = self._loaded.device
        past = len(self._job.prompt) + sampled - 1 if self._job and sampled else 0
        arguments: dict[str, Any] = {
            "input_ids": torch.tensor([tokens], device=device),
            "position_ids": torch.arange(past, past + len(tokens), device=device)[None],
            "use_cache": True,
            "logits_to_keep": keep,
            self._loaded.cache_argument: self._cache,
        }
        known = {name: value for name, value in arguments.items() if name in self._loaded.arguments}
        output = self._loaded.model(**known)
        self._cache = output[self._loaded.cache_argument]
        logits: Tensor = output.logits[0, -keep:].float()
        return logits

    def abandon(self) -> None:
        """Forget what is running after a failure."""
        self._job, self._cache = None, None
        self._waiting.clear()

    def score(self, items: Sequence[ScoreItem]) -> list[tuple[float, ...]]:
        """Log-probabilities of each item's ``ids``; see ``scoring``."""
        scores: list[tuple[float, ...]] = []
        for item in items:
            self._cache = None
            sequence = [*item.prompt_ids, *item.ids][:-1]
            logits = self._forward(sequence, 0, keep=len(item.ids))[-len(item.ids) :]
            wanted = torch.tensor(item.ids, device=logits.device)
            picked = logits.gather(1, wanted[:, None])[:, 0] - logits.logsumexp(-1)
            scores.append(tuple(picked.tolist()))
        self._cache = None
        return scores
