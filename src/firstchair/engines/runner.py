"""What every way of decoding shares: the protocol, and what happens to a token once it is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from firstchair.engines.base import ErrorKind, Stop
from firstchair.engines.jobs import GrammarFailure, Job
from firstchair.engines.sampling import Sampler
from firstchair.engines.scoring import ScoreItem

RETRIES = 16
"""Choices within a grammar that its guide may turn down before the reply is led to the end of its call."""


class Runner(Protocol):
    """Decodes jobs. Everything is called from one thread, under ``torch.inference_mode``."""

    @property
    def busy(self) -> bool:
        """Whether jobs wait or run."""
        ...

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue checked jobs."""
        ...

    def step(self) -> None:
        """Do one bounded piece of work; may raise what the model raises."""
        ...

    def jobs(self) -> list[Job]:
        """Every job that waits or runs."""
        ...

    def abandon(self) -> None:
        """Forget all jobs after a failure."""
        ...

    def score(self, items: Sequence[ScoreItem]) -> list[tuple[float, ...]]:
        """Log-probabilities in nats of each item's ids; called while not busy."""
        ...


class Finisher:
    """Takes each chosen token to its job and ends the job when it is due."""

    def __init__(self, stop_ids: Sequence[int], decode: Callable[[Sequence[int]], str], revision: str):
        self._stop_ids = frozenset(stop_ids)
        self._decode, self._revision = decode, revision
        self.cancels = False
        """Set (from any thread) when some job was cancelled, so that a step need not ask each one."""

    def take_cancels(self) -> bool:
        """Whether a job was cancelled since the last call."""
        found, self.cancels = self.cancels, False
        return found

    def drop_cancelled(self, job: Job) -> bool:
        """End ``job`` if it was cancelled; returns whether it is over."""
        if job.cancelled and not job.finished:
            self._finish(job, Stop.CANCELLED)
        return job.finished

    def accept(self, job: Job, choice: Choice, place: int) -> int:
        """Take the token chosen at ``place``, end the job on a stop token or at its limit; returns the token."""
        token = choice.tokens[place]
        logprob = choice.logprobs[place]
        if job.guide is not None:
            try:
                token, logprob = _guided(job, choice, place)
                job.guide.consume(token)
            except GrammarFailure as failure:
                job.refuse(ErrorKind.ENGINE, f"{ErrorKind.ENGINE}: {failure}")
                return token
        job.ids.append(token)
        job.logprobs.append(logprob)
        if token in self._stop_ids:
            self._finish(job, Stop.END)
        elif len(job.ids) >= job.limit:
            self._finish(job, Stop.LENGTH)
        return token

    def _finish(self, job: Job, stop: Stop) -> None:
        ids = job.ids[:-1] if stop is Stop.END else job.ids
        job.finish(stop, text=self._decode(ids), revision=self._revision)


@dataclass(frozen=True, slots=True)
class Choice:
    """One step's tokens of a batch, with what is needed to choose again for a row."""

    logits: Tensor
    """``[rows, vocabulary]``."""
    allowed: Tensor | None
    tokens: list[int]
    logprobs: list[float]


def choose(jobs: Sequence[Job], logits: Tensor, sampler: Sampler) -> Choice:
    """Choose a token for each job, within its grammar where it has one."""
    draws = [0.0] * len(sampler.hot)
    for place, row in enumerate(sampler.hot):
        if not jobs[row].finished:
            draws[place] = jobs[row].uniforms[len(jobs[row].ids)]
    allowed = _allowed(jobs, logits)
    tokens, logprobs = sampler.choose(logits, draws, allowed)
    return Choice(logits, allowed, tokens.tolist(), logprobs.tolist())


def _allowed(jobs: Sequence[Job], logits: Tensor) -> Tensor | None:
    """Which tokens the grammars of ``jobs`` allow, like ``logits`` but bool; ``None`` when all are free."""
    allowed: Tensor | None = None
    for place, job in enumerate(jobs):
        if job.guide is not None and not job.finished:
            mask = job.guide.allowed(job.limit - len(job.ids))
            if mask is not None:
                if allowed is None:
                    allowed = torch.ones_like(logits, dtype=torch.bool)
                allowed[place] = mask.to(logits.device)
    return allowed


def _guided(job: Job, choice: Choice, place: int) -> tuple[int, float]:
    """The token at ``place``, or the next best that the job's guide admits."""
    token, logprob = choice.tokens[place], choice.logprobs[place]
    assert job.guide is not None, "called for guided jobs only"
    if job.guide.admits(token):
        return token, logprob
    row = choice.logits[place : place + 1]
    grammar = choice.allowed
    allowed = torch.ones_like(row, dtype=torch.bool) if grammar is None else grammar[place][None].clone()
    sampler = Sampler([job.request.sampling], row.device)
    for _ in range(RETRIES):
        allowed[0, job.guide.barred(token)] = False
        if not allowed.any():
            break
        tokens, logprobs = sampler.choose(row, job.uniforms[len(job.ids) :][:1], allowed)
        token, logprob = int(tokens[0]), float(logprobs[0])
        if job.guide.admits(token):
            return token, logprob
    way_out = job.guide.way_out()
    if way_out is None:
        raise GrammarFailure("the grammar leaves no token")
    return way_out, float(row[0].float().log_softmax(-1)[way_out])
