"""Who samples the rollouts of a run: the engine in this process, or a server that is given the weights as files.

trainer ── push-00000007/ ──► server      at once probed, and probed again after the batch:
   ▲                            │         what a server sampled that died, was started anew or has other
   └──────── rollouts ◄─────────┘         weights is not trained on
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from firstchair.chat.renderer import Renderer
from firstchair.core.atomic import make_dirs
from firstchair.core.errors import ConfigError, RunFailed, UpstreamError
from firstchair.engines.base import Engine, ErrorKind, Generation, Request, Sampling
from firstchair.engines.http_engine import HttpEngine, HttpOptions, key_from
from firstchair.engines.http_retry import HttpFailure, RetryPolicy
from firstchair.engines.openai_engine import OpenAIEngine
from firstchair.engines.scoring import ScoreItem
from firstchair.engines.server_weights import SglangWeights, VllmAdapterWeights, VllmCheckpointWeights
from firstchair.engines.sglang_engine import SglangEngine
from firstchair.engines.transformers_engine import TransformersEngine
from firstchair.engines.weight_push import Checkpoint
from firstchair.engines.weights import DTYPES
from firstchair.train.engine_recipe import InProcessEngine, ServerSpec, VllmServer
from firstchair.train.grpo_recipe import GrpoRecipe
from firstchair.train.models import export_model, model_vocab_size
from firstchair.train.policy_engine import InMemoryPush, ProbedPush, probe_items
from firstchair.train.rollout_source import Batch, Batches, LoopThread, PolicyPush
from firstchair.train.run_dir import RunDir
from firstchair.train.sft_inputs import Learner

SERVER_PROMPT_TOKENS = 160
"""Of a probed prompt: more than a block of a prefix cache (vLLM on a CPU: 128), so that a stale one shows."""

NEUTRAL = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""What a request does not say, vLLM takes from the model's ``generation_config.json``; Qwen's has ``top_k`` 20, and
the log-probabilities that come back are not those of such a sampler."""

ServerWeights = VllmAdapterWeights | VllmCheckpointWeights | SglangWeights
_GONE = (ErrorKind.CONNECTION, ErrorKind.TIMEOUT)


class Sampler(Protocol):
    """An engine, and how the learner's weights get into it."""

    @property
    def engine(self) -> Engine:
        """Samples."""
        ...

    def connect(self, learner: Learner, batches: Batches) -> tuple[Batches, PolicyPush]:
        """What makes the batches, and what pushes the weights."""
        ...


@contextmanager
def open_sampler(recipe: GrpoRecipe, renderer: Renderer, run: RunDir, thread: LoopThread) -> Iterator[Sampler]:
    """The sampler of ``recipe`` for the length of the block; ``thread`` is where its engine is used.

    Raises ``ConfigError`` for a server that cannot be trained with as it was started, naming the flag, and
    ``RunFailed`` when none answers.
    """
    with ExitStack() as stack:
        if isinstance(recipe.engine, InProcessEngine):
            engine = TransformersEngine(recipe.model, renderer)
            stack.callback(lambda: thread.call(engine.close()))
            yield InProcessSampler(engine)
        else:
            yield stack.enter_context(_server_sampler(recipe, recipe.engine, renderer, run, thread))


@dataclass(frozen=True)
class InProcessSampler:
    """Cannot lose its weights, so nothing is asked after a batch."""

    engine: TransformersEngine

    def connect(self, learner: Learner, batches: Batches) -> tuple[Batches, PolicyPush]:
        """Weights are copied."""
        return batches, InMemoryPush(learner.scorer, self.engine, learner.layout)


# --- servers -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServerSampler:
    """A server with its weights."""

    engine: HttpEngine
    weights: ServerWeights
    recipe: GrpoRecipe
    spec: ServerSpec
    renderer: Renderer
    folder: Path

    def connect(self, learner: Learner, batches: Batches) -> tuple[Batches, PolicyPush]:
        """Weights are written to ``folder``; a batch counts when the server still has them after it."""
        push = ServerPush(self, learner)
        return ProvenBatches(batches, push), push


class ServerPush(ProbedPush[Checkpoint]):
    """To a server, as files. Failures name the server, and what it must have been started with."""

    def __init__(self, sampler: ServerSampler, learner: Learner):
        self._sampler, self._model = sampler, learner.scorer.model
        super().__init__(
            learner.scorer,
            learner.layout,
            sampler.weights,
            self._written,
            dtype=sampler.spec.dtype,
            prompt_tokens=SERVER_PROMPT_TOKENS,
        )

    async def push(self, expected: Sequence[Sequence[float]]) -> str:
        """As every push; what was pushed before is deleted once the new weights are proven."""
        with self._naming():
            revision = await super().push(expected)
        for old in _pushed(self._sampler.folder)[:-1]:
            shutil.rmtree(old, ignore_errors=True)
        return revision

    async def confirm(self) -> None:
        """As every probe."""
        with self._naming():
            await super().confirm()

    def _written(self) -> Checkpoint:
        sampler, spec = self._sampler, self._sampler.spec
        # Names that never come twice: a network file system may show the server an old folder under a known name.
        last = _pushed(sampler.folder)[-1:]
        number = int(last[0].name.rpartition("-")[2]) + 1 if last else 1
        path = sampler.folder / f"push-{number:08d}"
        export_model(self._model, sampler.renderer, path, precision=DTYPES[spec.dtype])
        full = sampler.recipe.method.type == "full"
        return Checkpoint(path) if full else Checkpoint(sampler.recipe.model, path)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        where = f"engine at {self._sampler.spec.base_url}"
        try:
            yield
        except HttpFailure as failure:
            gone = failure.kind in _GONE
            fix = "start it" if gone else f"a server that takes weights is started with {self._sampler.weights.needs}"
            raise RunFailed(f"{where}: {failure}; {fix}, and resume") from failure
        except UpstreamError as error:
            raise RunFailed(f"{where}: {error}") from error
        except RunFailed as error:
            raise RunFailed(f"{where}: {error}") from error


@dataclass(frozen=True)
class ProvenBatches:
    """Batches that were sampled by the pushed weights from their first token to their last."""

    batches: Batches
    push: ServerPush

    async def make(self, cursor: int) -> Batch:
        """Raises ``RunFailed`` too when the server is gone, or has other weights than before the batch."""
        batch = await self.batches.make(cursor)
        await self.push.confirm()
        return batch


def _pushed(folder: Path) -> list[Path]:
    """What was written there, oldest first."""
    return sorted(folder.glob("push-????????"))


@contextmanager
def _server_sampler(
    recipe: GrpoRecipe, spec: ServerSpec, renderer: Renderer, run: RunDir, thread: LoopThread
) -> Iterator[ServerSampler]:
    folder = spec.weights_dir or run.path / "pushed"
    make_dirs(folder)
    for crashed in folder.glob(".push-*"):
        shutil.rmtree(crashed, ignore_errors=True)
    adapter = None
    if recipe.method.type == "lora":
        adapter = f"{spec.model if isinstance(spec, VllmServer) else recipe.model.name}-{recipe.out.name}"
    with _connected(recipe, spec, renderer, None, thread) as (engine, weights):
        thread.call(check_server(engine, weights, spec, model_vocab_size(recipe.model)))
    with _connected(recipe, spec, renderer, adapter, thread) as (engine, weights):
        yield ServerSampler(engine, weights, recipe, spec, renderer, folder)


@contextmanager
def _connected(
    recipe: GrpoRecipe, spec: ServerSpec, renderer: Renderer, adapter: str | None, thread: LoopThread
) -> Iterator[tuple[HttpEngine, ServerWeights]]:
    """The server's engine and weights: those of the model, or those of an adapter."""
    key = key_from(spec.api_key_env, field="engine.api_key_env")
    retry, slots = RetryPolicy(tries=spec.tries, read_s=spec.try_s), recipe.rollouts.concurrency
    engine: HttpEngine
    weights: ServerWeights
    if isinstance(spec, VllmServer):
        options = HttpOptions(retry=retry, seed=recipe.seed, extra_body=NEUTRAL)
        name = adapter or spec.model
        engine = OpenAIEngine(
            spec.base_url, name, renderer, api_key=key, mode="tokens", concurrency=slots, options=options
        )
        weights = VllmCheckpointWeights(engine) if adapter is None else VllmAdapterWeights(engine)
    else:
        options = HttpOptions(retry=retry, seed=recipe.seed)
        engine = SglangEngine(
            spec.base_url, renderer, lora_name=adapter, api_key=key, concurrency=slots, options=options
        )
        weights = SglangWeights(engine, lora_name=adapter or "")
    try:
        yield engine, weights
    finally:
        thread.call(weights.close())
        thread.call(engine.close())


async def check_server(engine: HttpEngine, weights: ServerWeights, spec: ServerSpec, vocab_size: int) -> None:
    """Sample and score a little, before anything is trained.

    Raises ``ConfigError`` naming the flag where the server does not tell ids or raw log-probabilities, ``RunFailed``
    when it does not answer.
    """
    (item, *_) = probe_items(vocab_size, SERVER_PROMPT_TOKENS)
    sampling = Sampling(max_new_tokens=2, temperature=1.0, seed=0)
    request = Request("check", prompt_ids=item.prompt_ids, sampling=sampling)
    (generation,) = [generation async for generation in engine.generate([request])]
    _refuse_answer(generation, spec)
    try:
        ((logprob,),) = await weights.score([ScoreItem(item.prompt_ids, item.ids[:1])])
    except UpstreamError as error:
        raise RunFailed(f"engine at {spec.base_url}: it samples, and does not score: {error}") from error
    if not logprob < 0:
        raise ConfigError(
            f"engine at {spec.base_url}: found log-probability {logprob:g} for a random token; expected raw ones: "
            "start the server with --logprobs-mode raw_logprobs (vLLM's default)"
        )


def _refuse_answer(generation: Generation, spec: ServerSpec) -> None:
    where, vllm = f"engine at {spec.base_url}", isinstance(spec, VllmServer)
    if generation.error is not None:
        if generation.error_kind in (*_GONE, ErrorKind.SERVER):
            hint = "start it"
            if vllm:
                hint += " (on a CPU with --no-enable-chunked-prefill, or a request with a seed ends it)"
            raise RunFailed(f"{where}: no answer: {generation.error}; {hint}")
        raise ConfigError(f"{where}: it does not sample: {generation.error}; check its address, model name and key")
    if generation.ids is None:
        fix = (
            "return_token_ids needs vLLM 0.10.2 or newer, and nothing between that drops it"
            if vllm
            else "is it SGLang?"
        )
        raise ConfigError(f"{where}: it does not tell the ids that it sampled; {fix}")
    if generation.logprobs is None:
        fix = "start vLLM with --max-logprobs of at least 1" if vllm else "is it SGLang?"
        raise ConfigError(f"{where}: it does not tell log-probabilities; {fix}")
