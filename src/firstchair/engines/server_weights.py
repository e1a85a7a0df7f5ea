"""Weights of a model behind HTTP: vLLM by adapter or by checkpoint, SGLang by either.

The server reads the files itself, so their path must mean the same there. Generations of the engine that was handed
over carry the revision of the last push; one that was under way during a push carries none.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from firstchair.core.errors import ConfigError
from firstchair.engines.base import ErrorKind
from firstchair.engines.http_engine import HttpEngine
from firstchair.engines.http_retry import HttpFailure, post_done, post_json
from firstchair.engines.scoring import ScoreItem
from firstchair.engines.weight_push import Checkpoint
from firstchair.engines.weights import base_hashes, weights_revision


class ServerWeights:
    """What every server has in common. Use it as an async context manager, or ``close`` it."""

    needs = ""
    """How the server must have been started to take weights."""

    def __init__(self, engine: HttpEngine):
        self._engine = engine
        self._retry, self._rng = engine.options.retry, random.Random(engine.options.seed)
        self._client = httpx.AsyncClient(
            base_url=engine.base_url.removesuffix("/v1"),
            headers=engine.headers,
            transport=engine.options.transport,
            timeout=httpx.Timeout(self._retry.read_s, connect=self._retry.connect_s),
        )

    async def __aenter__(self) -> ServerWeights:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; the engine stays."""
        await self._client.aclose()

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return await post_json(self._client, path, body, policy=self._retry, rng=self._rng)

    async def _command(self, path: str, body: dict[str, Any]) -> None:
        """A POST whose answer says nothing but that it was done."""
        await post_done(self._client, path, body, policy=self._retry, rng=self._rng)

    def _serves(self, revision: str) -> str:
        self._engine.revision = revision
        return revision


class VllmWeights(ServerWeights):
    """Scores over vLLM's ``/v1/completions``; a subclass knows how to push."""

    async def score(self, items: Sequence[ScoreItem]) -> list[tuple[float, ...]]:
        """One request a token, each forced to sample the wanted id: as replies are made, prefix cache included.

        Reading a prompt's log-probabilities would be one request an item, but vLLM then leaves its cache aside, and a
        cache that holds keys of the old weights would go unseen. Needs raw log-probabilities, vLLM's default.
        """
        return [tuple([await self._next(item, place) for place in range(len(item.ids))]) for item in items]

    async def _next(self, item: ScoreItem, place: int) -> float:
        wanted = item.ids[place]
        body = {
            "model": self._engine.model,
            "prompt": [*item.prompt_ids, *item.ids[:place]],
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": 0,
            "return_token_ids": True,
            "allowed_token_ids": [wanted],
        }
        (choice,) = (await self._post("/v1/completions", body))["choices"]
        if choice.get("token_ids") != [wanted]:
            found = f"asked for token {wanted} alone and got {choice.get('token_ids')}; is this a vLLM server?"
            raise HttpFailure(ErrorKind.BAD_RESPONSE, found)
        return float(choice["logprobs"]["token_logprobs"][0])


class VllmAdapterWeights(VllmWeights):
    """Adapters, hot-loaded under the engine's model name.

    The base is hashed on the first push only.
    """

    needs = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and a --max-lora-rank of at least the adapter's rank"

    _base: tuple[Path, dict[str, str]] | None = None

    async def push(self, checkpoint: Checkpoint) -> str:
        """Load ``checkpoint.adapter`` in place of the one before; ``model_dir`` must be what the server serves."""
        if checkpoint.adapter is None:
            raise ConfigError(f"{checkpoint.model_dir}: no adapter; full weights need VllmCheckpointWeights")
        if self._base is None or self._base[0] != checkpoint.model_dir:
            self._base = (checkpoint.model_dir, await asyncio.to_thread(base_hashes, checkpoint.model_dir))
        revision = await asyncio.to_thread(weights_revision, checkpoint.model_dir, checkpoint.adapter, self._base[1])
        body = {"lora_name": self._engine.model, "lora_path": str(checkpoint.adapter.resolve()), "load_inplace": True}
        self._serves("")
        await self._command("/v1/load_lora_adapter", body)
        return self._serves(revision)


class VllmCheckpointWeights(VllmWeights):
    """Whole models of the same shape."""

    needs = (
        "VLLM_SERVER_DEV_MODE=1, this package on its PYTHONPATH and "
        "--worker-extension-cls firstchair.engines.vllm_worker.CheckpointLoader"
    )

    async def push(self, checkpoint: Checkpoint) -> str:
        """Load ``checkpoint.model_dir`` and forget the keys and values of the old weights.

        Requests that are running when the weights change mix the two; push when none are.
        """
        revision = await asyncio.to_thread(weights_revision, _whole(checkpoint))
        arguments = {"weights_path": str(checkpoint.model_dir.resolve())}
        self._serves("")
        await self._post("/collective_rpc", {"method": "firstchair_load", "kwargs": arguments})
        answer = await self._post("/reset_prefix_cache", {})
        if not answer.get("success"):
            found = "/reset_prefix_cache: vLLM kept its prefix cache; push when no request is running"
            raise HttpFailure(ErrorKind.SERVER, found)
        return self._serves(revision)


class SglangWeights(ServerWeights):
    """An SGLang server: an adapter when the checkpoint has one, else the whole model.

    ``lora_name`` is the adapter's name there; requests for it carry it as SGLang's ``lora_path``, which
    ``SglangEngine`` adds.
    """

    needs = "--enable-lora, where an adapter is pushed, and a --max-lora-rank of at least its rank"

    def __init__(self, engine: HttpEngine, *, lora_name: str = "policy"):
        super().__init__(engine)
        self._lora_name, self._loaded = lora_name, False

    async def push(self, checkpoint: Checkpoint) -> str:
        """Load the adapter in place of the one before, or the whole model, and drop the cached keys and values."""
        revision = await asyncio.to_thread(weights_revision, checkpoint.model_dir, checkpoint.adapter)
        self._serves("")
        if checkpoint.adapter is None:
            body = {"model_path": str(checkpoint.model_dir.resolve()), "weight_version": revision}
            await self._done("/update_weights_from_disk", body | {"flush_cache": True})
        else:
            await self._replace_adapter(str(checkpoint.adapter.resolve()))
            await self._command("/flush_cache", {})
        return self._serves(revision)

    async def _replace_adapter(self, path: str) -> None:
        """A name that is taken is refused, so the old adapter goes first; requests between the two fail."""
        name = {"lora_name": self._lora_name}
        new = name | {"lora_path": path}
        if self._loaded:
            await self._done("/unload_lora_adapter", name)
            self._loaded = False
        try:
            await self._done("/load_lora_adapter", new)
        except HttpFailure as refused:
            # A run that was killed has left its adapter under the name.
            try:
                await self._done("/unload_lora_adapter", name)
            except HttpFailure:
                raise refused from None
            await self._done("/load_lora_adapter", new)
        self._loaded = True

    async def score(self, items: Sequence[ScoreItem]) -> list[tuple[float, ...]]:
        """``/generate`` without a new token, from the last prompt token on."""
        return [await self._score(item) for item in items]

    async def _score(self, item: ScoreItem) -> tuple[float, ...]:
        body: dict[str, Any] = {
            "input_ids": [*item.prompt_ids, *item.ids],
            "sampling_params": {"max_new_tokens": 0, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": len(item.prompt_ids) - 1,
        }
        if self._loaded:
            body["lora_path"] = self._lora_name
        rows = (await self._post("/generate", body))["meta_info"]["input_token_logprobs"][-len(item.ids) :]
        if [row[1] for row in rows] != list(item.ids):
            found = f"/generate scored the ids {[row[1] for row in rows]}; expected {list(item.ids)}"
            raise HttpFailure(ErrorKind.BAD_RESPONSE, found)
        return tuple(float(row[0]) for row in rows)

    async def _done(self, path: str, body: dict[str, Any]) -> None:
        answer = await self._post(path, body)
        if answer.get("success") is not True:
            reason = answer.get("message") or answer.get("error_message") or answer
            raise HttpFailure(ErrorKind.SERVER, f"{path}: SGLang did not do it: {reason}")


def _whole(checkpoint: Checkpoint) -> Path:
    if checkpoint.adapter is not None:
        raise ConfigError(
            f"{checkpoint.adapter}: an adapter; merge it into its model, or push it with VllmAdapterWeights"
        )
    return checkpoint.model_dir
