"""The in-process engine: any causal model of transformers, many requests at once, shared prefixes computed once.

    event loop                    worker thread (owns the model)
    generate ── jobs ──► inbox ──► prepare (render, check) ──► runner: admit, prefill, decode
       ▲                                                          │
       └──────────── generations, one per request ◄───────────────┘

Greedy replies in float32 equal those of one request at a time, token for token. ``docs/inference.md`` says how.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from firstchair.engines.base import EngineInfo, ErrorKind, Generation, Request
from firstchair.engines.constrain import Grammars
from firstchair.engines.jobs import Job, RequestRefused, check_request, fit_prompt
from firstchair.engines.openmp import release_pool
from firstchair.engines.packed_runner import Limits, PackedRunner
from firstchair.engines.packed_support import use_packed_attention
from firstchair.engines.plain_runner import PlainRunner
from firstchair.engines.prompt_text import PromptRenderer, TextSide
from firstchair.engines.runner import Finisher, Runner
from firstchair.engines.sampling import draw_uniforms
from firstchair.engines.scoring import ScoreItem, check_items
from firstchair.engines.weights import LoadedModel, load_model
from firstchair.engines.worker import Worker

Result = TypeVar("Result")

DEFAULT_KV_BYTES = 2**30
"""Memory for keys and values when ``max_batch_tokens`` is not given."""


@dataclass(frozen=True)
class _Serving:
    """One set of weights with everything that depends on it; replaced as a whole on reload."""

    loaded: LoadedModel
    runner: Runner
    finisher: Finisher
    limits: Limits
    why_plain: str | None
    """Why requests are served one at a time; ``None`` when they are packed."""


class TransformersEngine:
    """An ``Engine`` over a model directory.

    ``renderer`` turns messages into prompts; ``None`` takes the tokenizer in ``model_dir`` with its own chat
    template, and without one only requests with ``prompt_ids`` can be served. ``max_batch_tokens`` bounds the
    tokens whose keys and values are held at once (default: what fits 1 GiB, at least one context window); of
    these at most ``max_cached_tokens`` stay between calls (default: half). ``prefix_sharing=False`` serves one
    request at a time through transformers' own cache: the reference. An ``adapter`` (PEFT) is merged.

    Raises ``ConfigError`` when the model cannot be loaded.
    """

    def __init__(
        self,
        model_dir: str | Path,
        renderer: PromptRenderer | None = None,
        dtype: str = "float32",
        max_batch_tokens: int | None = None,
        prefix_sharing: bool = True,
        adapter: str | Path | None = None,
        max_cached_tokens: int | None = None,
        device: str = "cpu",
    ):
        self._model_dir = Path(model_dir)
        self._own_renderer = renderer
        self._dtype, self._device = dtype, device
        self._max_batch_tokens, self._max_cached_tokens = max_batch_tokens, max_cached_tokens
        self._prefix_sharing = prefix_sharing
        self._text = TextSide.of(self._model_dir, renderer)
        self._grammars = Grammars(self._text.tokenizer)
        self._serving = self._serve(Path(adapter) if adapter else None)
        release_pool()  # of the caller, who only loads; from here on the worker computes
        self._worker = Worker(lambda: self._serving.runner, self._prepare)
        self._live: dict[str, list[Job]] = {}
        self._lock = threading.Lock()

    def _serve(self, adapter: Path | None) -> _Serving:
        loaded = load_model(self._model_dir, dtype=self._dtype, adapter=adapter, device=self._device)
        stop_ids = self._text.stop_ids or loaded.stop_ids
        finisher = Finisher(stop_ids, self._text.decode, loaded.revision)
        limits = _limits(loaded, self._max_batch_tokens, self._max_cached_tokens)
        why_plain = use_packed_attention(loaded) if self._prefix_sharing else "prefix_sharing=False"
        runner: Runner = (
            PackedRunner(loaded, finisher, limits) if why_plain is None else PlainRunner(loaded, finisher)
        )
        return _Serving(loaded, runner, finisher, limits, why_plain)

    def info(self) -> EngineInfo:
        """What is served. ``revision`` hashes the full contents of the weight files and of the adapter."""
        serving = self._serving
        loaded = serving.loaded
        return EngineInfo(
            engine="transformers",
            model=loaded.source,
            revision=loaded.revision,
            template_hash=self._text.template_hash,
            context_window=loaded.context_window,
            dtype=self._dtype,
            enforces_constrain=True,
            details={
                "adapter": loaded.adapter,
                "prefix_sharing": serving.why_plain is None,
                "one_at_a_time_because": serving.why_plain,
                "max_batch_tokens": serving.limits.max_batch_tokens,
                "device": str(loaded.device),
                "threads": torch.get_num_threads(),
                "torch": str(torch.__version__),
                "logprobs": "raw: temperature 1, untruncated, before any grammar",
            },
        )

    async def generate(self, requests: Sequence[Request]) -> AsyncIterator[Generation]:
        """Yield one generation per request as each is finished; leaving early cancels the rest.

        Requests with one ``group`` share prefixes with their earlier calls too. A request that cannot be served
        yields ``Stop.ERROR`` with an ``error_kind``; the others go on.
        """
        loop = asyncio.get_running_loop()
        results: asyncio.Queue[Generation] = asyncio.Queue()

        def deliver(generation: Generation) -> None:
            # A loop that was closed meanwhile has nobody waiting.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(results.put_nowait, generation)

        jobs = [Job(request, deliver) for request in requests]
        self._track(jobs)
        self._worker.submit(jobs)
        try:
            for _ in jobs:
                yield await results.get()
        finally:
            self._cancel(jobs)
            self._untrack(jobs)

    def _track(self, jobs: Sequence[Job]) -> None:
        with self._lock:
            for job in jobs:
                self._live.setdefault(job.request.request_id, []).append(job)

    def _untrack(self, jobs: Sequence[Job]) -> None:
        with self._lock:
            for job in jobs:
                same_id = self._live[job.request.request_id]
                same_id.remove(job)
                if not same_id:
                    del self._live[job.request.request_id]

    def _cancel(self, jobs: Sequence[Job]) -> bool:
        open_jobs = [job for job in jobs if not job.finished]
        for job in open_jobs:
            job.cancelled = True
        if open_jobs:
            self._serving.finisher.cancels = True
        return bool(open_jobs)

    async def cancel(self, request_id: str) -> bool:
        """Stop every request of that id before its next token; ``False`` when there is none in flight."""
        with self._lock:
            jobs = list(self._live.get(request_id, ()))
        return self._cancel(jobs)

    def _prepare(self, jobs: Sequence[Job]) -> list[Job]:
        """Render and check; a job that cannot be served is refused and left out. Runs in the worker thread."""
        loaded = self._serving.loaded
        ready: list[Job] = []
        for job in jobs:
            try:
                check_request(job.request)
                job.prompt = np.asarray(self._text.prompt(job.request), dtype=np.int64).astype(np.int32)
                fit_prompt(job, vocab_size=loaded.vocab_size, window=loaded.context_window)
                job.uniforms = draw_uniforms(job.request.sampling, job.limit)
                if job.request.constrain and job.request.tools:
                    job.guide = self._grammars.guide(job.request.tools, self._text.tool_format, loaded.vocab_size)
                ready.append(job)
            except RequestRefused as refusal:
                job.refuse(refusal.kind, str(refusal))
        return ready

    async def score(self, items: Sequence[ScoreItem]) -> list[tuple[float, ...]]:
        """Log-probabilities in nats of each item's ``ids``, read and not sampled; shared prefixes count once.

        Waits for requests in flight. Raises ``BadRequest`` naming the item that cannot be scored.
        """
        loaded = self._serving.loaded
        check_items(items, vocab_size=loaded.vocab_size, window=loaded.context_window)
        return await self._when_idle(lambda: self._serving.runner.score(items))

    async def score_ids(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> tuple[float, ...]:
        """``score`` of one continuation."""
        return (await self.score([ScoreItem(tuple(prompt_ids), tuple(ids))]))[0]

    async def reload(self, model_dir: str | Path, adapter: str | Path | None = None) -> EngineInfo:
        """Serve other weights (same tokenizer). Requests in flight finish on the old ones; caches are dropped.

        On ``ConfigError`` the old weights stay in service.
        """
        old, self_dir = self._model_dir, Path(model_dir)

        def load() -> EngineInfo:
            self._model_dir = self_dir
            try:
                self._serving = self._serve(Path(adapter) if adapter else None)
            except BaseException:
                self._model_dir = old
                raise
            return self.info()

        return await self._when_idle(load)

    async def set_adapter(self, adapter: str | Path | None) -> EngineInfo:
        """Serve the same base with another adapter, or with none."""
        return await self.reload(self._model_dir, adapter)

    async def take_weights(self, weights: Mapping[str, Tensor]) -> EngineInfo:
        """Serve copies of ``weights``, named as in the model's state; tied ones may be left out. From memory, so for
        a trainer in the same process. Requests in flight finish on the old ones; caches are dropped.

        Raises ``ConfigError`` when names or shapes are not the model's; the old weights then stay.
        """

        def take() -> EngineInfo:
            serving = self._serving
            loaded = serving.loaded.with_weights(weights)
            finisher = Finisher(self._text.stop_ids or loaded.stop_ids, self._text.decode, loaded.revision)
            runner: Runner = (
                PackedRunner(loaded, finisher, serving.limits)
                if serving.why_plain is None
                else PlainRunner(loaded, finisher)
            )
            self._serving = replace(serving, loaded=loaded, runner=runner, finisher=finisher)
            return self.info()

        return await self._when_idle(take)

    async def _when_idle(self, work: Callable[[], Result]) -> Result:
        future: Future[Any] = self._worker.call(work)
        result: Result = await asyncio.wrap_future(future)
        return result

    async def close(self) -> None:
        """End the worker thread; requests in flight yield ``Stop.ERROR``. Later requests are refused."""
        await asyncio.to_thread(self._worker.close)


def _limits(loaded: LoadedModel, max_batch_tokens: int | None, max_cached_tokens: int | None) -> Limits:
    if max_batch_tokens is None:
        fits = DEFAULT_KV_BYTES // _kv_bytes_per_token(loaded)
        max_batch_tokens = max(fits, loaded.context_window or 0)
    if max_cached_tokens is None:
        max_cached_tokens = max_batch_tokens // 2
    return Limits(max_batch_tokens=max_batch_tokens, max_cached_tokens=min(max_cached_tokens, max_batch_tokens))


def _kv_bytes_per_token(loaded: LoadedModel) -> int:
    config = loaded.model.config.get_text_config()
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    return 2 * loaded.layers * kv_heads * head_dim * int(loaded.model.dtype.itemsize)


__all__ = ["ErrorKind", "ScoreItem", "TransformersEngine"]
