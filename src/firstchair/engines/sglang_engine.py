"""An SGLang server as an engine, by its own ``/generate``: its OpenAI endpoints do not tell the ids they sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from firstchair.core.errors import DataError
from firstchair.engines.base import EngineInfo, ErrorKind, Generation, Request, Stop
from firstchair.engines.http_engine import HttpEngine, HttpOptions
from firstchair.engines.http_retry import HttpFailure

if TYPE_CHECKING:
    from firstchair.chat.renderer import Renderer

_STOPS: Mapping[str, Stop] = MappingProxyType({"stop": Stop.END, "length": Stop.LENGTH})


class SglangEngine(HttpEngine):
    """An ``Engine`` over ``base_url``; prompts are rendered here and go out as ids.

    ``lora_name``: the adapter that answers, as it was loaded there (``SglangWeights``). Seeds are not sent: SGLang
    keeps them only in its deterministic mode. Checked against its documented wire.
    """

    name = "sglang"

    def __init__(
        self,
        base_url: str,
        renderer: Renderer,
        *,
        lora_name: str | None = None,
        api_key: str = "none",
        concurrency: int = 16,
        options: HttpOptions | None = None,
    ):
        super().__init__(
            base_url.rstrip("/").removesuffix("/v1"),
            lora_name or "sglang",
            headers={"authorization": f"Bearer {api_key}"},
            options=options or HttpOptions(),
            concurrency=concurrency,
        )
        self._renderer, self._lora_name = renderer, lora_name

    def info(self) -> EngineInfo:
        """Address and adapter."""
        return replace(super().info(), template_hash=self._renderer.template_hash)

    def build(self, request: Request, dropped: list[str]) -> tuple[str, dict[str, Any]]:
        """Ids and every setting of the sampler, so that the model's ``generation_config.json`` changes none."""
        if request.constrain:
            raise DataError("SglangEngine cannot constrain; use the transformers engine", field="constrain")
        sampling = request.sampling
        dropped += ["json_schema"] if request.json_schema is not None else []
        dropped += ["sampling.seed"] if sampling.seed is not None else []
        body: dict[str, Any] = {
            "input_ids": list(self._prompt_ids(request)),
            "return_logprob": True,
            "sampling_params": {
                "max_new_tokens": sampling.max_new_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k or -1,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "stop_token_ids": list(self._renderer.stop_ids),
                "skip_special_tokens": False,
            },
        }
        return "/generate", body if self._lora_name is None else body | {"lora_path": self._lora_name}

    def read(self, request: Request, payload: dict[str, Any]) -> Generation:
        """The sampled ids with their log-probabilities. An answer that was aborted there is a failure."""
        about = payload["meta_info"]
        finish = about["finish_reason"]
        if finish["type"] not in _STOPS:
            found = f"the answer ended with {finish['type']!r}: {finish.get('message') or 'no reason given'}"
            raise HttpFailure(ErrorKind.SERVER, found)
        rows = about.get("output_token_logprobs")
        generation = Generation(
            request_id=request.request_id,
            stop=_STOPS[finish["type"]],
            text=payload["text"],
            prompt_ids=self._prompt_ids(request),
            prompt_tokens=about["prompt_tokens"],
            output_tokens=about["completion_tokens"],
            cached_tokens=about.get("cached_tokens", 0),
        )
        if rows is None:
            return generation
        ids = tuple(int(row[1]) for row in rows)
        if ids != tuple(payload.get("output_ids", ids)):
            raise HttpFailure(ErrorKind.BAD_RESPONSE, "output_token_logprobs are not those of output_ids")
        logprobs = tuple(float(row[0]) for row in rows)
        return replace(generation, text=self._renderer.decode(ids), ids=ids, logprobs=logprobs)

    def _prompt_ids(self, request: Request) -> tuple[int, ...]:
        if request.prompt_ids is not None:
            return request.prompt_ids
        return tuple(self._renderer.prompt_ids(request.messages, request.tools))
