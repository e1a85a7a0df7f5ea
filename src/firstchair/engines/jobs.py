"""One request on its way through an in-process engine, and the ways it can fail."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from firstchair.core.errors import BadRequest
from firstchair.engines.base import ErrorKind, Generation, Request, Stop

if TYPE_CHECKING:
    from firstchair.engines.constrain import CallGuide

Tokens = NDArray[np.int32]


class RequestRefused(BadRequest):
    """A request that this engine cannot serve; becomes ``Stop.ERROR`` of that kind, never a raised exception."""

    def __init__(self, kind: ErrorKind, message: str):
        self.kind = kind
        super().__init__(f"{kind}: {message}")


@functools.lru_cache(maxsize=4)
def _integers(count: int) -> tuple[int, ...]:
    return tuple(range(count))


class GrammarFailure(Exception):
    """A constrained reply that cannot go on; ends that one request with ``Stop.ERROR``."""


@dataclass(slots=True, eq=False)
class Job:
    """A request being served. Only the engine's worker thread touches it, apart from ``cancelled``."""

    request: Request
    deliver: Callable[[Generation], None]
    """Called exactly once, from the worker thread."""
    prompt: Tokens = field(default_factory=lambda: np.zeros(0, np.int32))
    vocab_size: int = 0
    limit: int = 0
    """Most tokens it may sample: ``max_new_tokens`` cut to what the context window leaves."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    uniforms: list[float] = field(default_factory=list)
    """One draw in [0, 1) for each token to sample, from the request's own generator; empty when greedy."""
    guide: CallGuide | None = None
    """Set when tool calls are constrained."""
    cached_tokens: int = 0
    """Prompt tokens whose keys and values were there already."""
    submitted: float = field(default_factory=time.perf_counter)
    cancelled: bool = False
    finished: bool = False

    def _prompt_ids(self) -> tuple[int, ...]:
        given = self.request.prompt_ids
        if given is not None:
            return tuple(given)
        if not self.vocab_size:
            return tuple(self.prompt.tolist())
        # The same integer objects for every reply: thousands of long prompts hold millions of ids.
        return tuple(map(_integers(self.vocab_size).__getitem__, self.prompt.tolist()))

    def refuse(self, kind: ErrorKind, reason: str) -> None:
        """Finish without a generation."""
        self.finish(Stop.ERROR, error=reason, error_kind=kind)

    def finish(
        self,
        stop: Stop,
        *,
        text: str = "",
        revision: str = "",
        error: str | None = None,
        error_kind: ErrorKind | None = None,
    ) -> None:
        """Deliver what there is; a second call does nothing."""
        if self.finished:
            return
        self.finished = True
        known = stop is not Stop.ERROR
        self.deliver(
            Generation(
                request_id=self.request.request_id,
                stop=stop,
                text=text,
                prompt_ids=self._prompt_ids(),
                ids=tuple(self.ids) if known else None,
                logprobs=tuple(self.logprobs) if known else None,
                prompt_tokens=len(self.prompt),
                latency_s=time.perf_counter() - self.submitted,
                error=error,
                error_kind=error_kind,
                cached_tokens=self.cached_tokens,
                revision=revision,
                dropped=() if self.request.json_schema is None else ("json_schema",),
            )
        )


def check_request(request: Request) -> None:
    """Raise ``RequestRefused`` for sampling settings outside their ranges."""
    sampling = request.sampling
    rules = (
        (sampling.max_new_tokens >= 1, f"max_new_tokens is {sampling.max_new_tokens}; expected at least 1"),
        (sampling.temperature >= 0, f"temperature is {sampling.temperature}; expected 0 (greedy) or more"),
        (0 < sampling.top_p <= 1, f"top_p is {sampling.top_p}; expected a value in (0, 1]"),
        (sampling.top_k >= 0, f"top_k is {sampling.top_k}; expected 0 (off) or more"),
    )
    for holds, message in rules:
        if not holds:
            raise RequestRefused(ErrorKind.BAD_REQUEST, f"sampling.{message}")


def fit_prompt(job: Job, *, vocab_size: int, window: int | None) -> None:
    """Check ``job.prompt`` against vocabulary and window, and set ``job.limit``. Raises ``RequestRefused``."""
    count = len(job.prompt)
    if count == 0:
        raise RequestRefused(ErrorKind.BAD_REQUEST, "the prompt has no tokens; give messages or prompt_ids")
    low, high = int(job.prompt.min()), int(job.prompt.max())
    if low < 0 or high >= vocab_size:
        bad = low if low < 0 else high
        raise RequestRefused(
            ErrorKind.BAD_REQUEST, f"prompt_ids holds {bad}; the model's vocabulary is 0 to {vocab_size - 1}"
        )
    job.vocab_size, job.limit = vocab_size, job.request.sampling.max_new_tokens
    if window is not None:
        if count >= window:
            raise RequestRefused(
                ErrorKind.CONTEXT_OVERFLOW,
                f"the prompt has {count:,} tokens, the context window holds {window:,}; shorten the conversation",
            )
        job.limit = min(job.limit, window - count)
