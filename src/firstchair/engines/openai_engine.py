"""Any server that speaks OpenAI's HTTP: vLLM, SGLang, llama.cpp, OpenRouter, OpenAI.

    chat mode     POST /chat/completions  messages + tools          → ``Generation.message``
    token mode    POST /completions       prompt ids, return ids    → ``Generation.text``, ``ids``, ``logprobs``

Token mode is what training and replay of our own models use: the prompt is rendered here, by the one renderer,
and nothing is tokenised twice. It needs a server that takes and returns ids; vLLM does.
"""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from firstchair.catalog.token_counts import NANO, TokenCounts
from firstchair.catalog.usage import counts_from_openai
from firstchair.chat.openai_calls import replayable
from firstchair.chat.openai_wire import message_from_openai_response, messages_to_openai, tools_to_openai
from firstchair.chat.wire_request import finish_from_openai, usage_from_openai
from firstchair.core.errors import DataError
from firstchair.engines.base import EngineInfo, ErrorKind, Generation, Request, Sampling
from firstchair.engines.http_engine import HttpEngine, HttpOptions
from firstchair.engines.http_retry import HttpFailure, hidden_failure
from firstchair.engines.stops import stop_of

if TYPE_CHECKING:
    from firstchair.chat.renderer import Renderer

Mode = Literal["auto", "chat", "tokens"]


class OpenAIEngine(HttpEngine):
    """An ``Engine`` over ``base_url`` (with its ``/v1``).

    ``mode`` ``auto`` sends ids when the request carries ``prompt_ids`` or a ``renderer`` is given, else messages.
    ``ask_ids`` adds vLLM's ``return_token_ids`` and log-probabilities to chat requests (OpenAI itself refuses it).
    Log-probabilities are taken as raw (temperature 1), which is what vLLM gives unless told otherwise.
    """

    name = "openai"

    def __init__(
        self,
        base_url: str,
        model: str,
        renderer: Renderer | None = None,
        *,
        api_key: str = "none",
        mode: Mode = "auto",
        ask_ids: bool = False,
        concurrency: int = 16,
        options: HttpOptions | None = None,
    ):
        headers = {"authorization": f"Bearer {api_key}"}
        super().__init__(base_url, model, headers=headers, options=options or HttpOptions(), concurrency=concurrency)
        self._renderer, self._mode, self._ask_ids = renderer, mode, ask_ids

    def info(self) -> EngineInfo:
        """Address and model; the template's hash when the prompt is rendered here."""
        template = self._renderer.template_hash if self._renderer else ""
        return replace(super().info(), template_hash=template)

    def build(self, request: Request, dropped: list[str]) -> tuple[str, dict[str, Any]]:
        """Path and body in the mode that the request gets."""
        if self._by_tokens(request):
            if request.json_schema is not None:
                dropped.append("json_schema")
            return "/completions", self._completion_body(request)
        return "/chat/completions", self._chat_body(request, dropped)

    def read(self, request: Request, payload: dict[str, Any]) -> Generation:
        """The one choice of the answer."""
        (choice,) = payload["choices"]
        usage = usage_from_openai(payload.get("usage") or {})
        generation = Generation(
            request_id=request.request_id,
            stop=stop_of(finish_from_openai(choice.get("finish_reason"), has_calls=False)),
            prompt_tokens=usage.input + usage.cache_read + usage.cache_write,
            output_tokens=usage.output if payload.get("usage") else None,
            cached_tokens=usage.cache_read,
        )
        if not self._by_tokens(request):
            generation = replace(generation, message=message_from_openai_response(payload))
            return self._with_ids(generation, choice, payload, _chat_logprobs(choice))
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
        generation = self._with_ids(generation, choice, payload, logprobs)
        sent = self._prompt_ids(request)
        if generation.prompt_ids is not None and generation.prompt_ids != sent:
            raise HttpFailure(ErrorKind.BAD_RESPONSE, "prompt_token_ids are not the ids that were sent")
        text = choice["text"]
        if self._renderer is not None and generation.ids is not None:
            text = self._renderer.decode(generation.ids)
        return replace(generation, text=text, prompt_ids=sent)

    def counts(self, payload: dict[str, Any]) -> TokenCounts | None:
        """``usage`` as disjoint counters."""
        return counts_from_openai(payload.get("usage"))

    def billed_nano(self, payload: dict[str, Any]) -> int | None:
        """``usage.cost``, which OpenRouter gives in dollars."""
        usage = payload.get("usage")
        cost = usage.get("cost") if isinstance(usage, dict) else None
        if isinstance(cost, bool) or not isinstance(cost, int | float) or cost < 0:
            return None
        return int((Decimal(str(cost)) * NANO).to_integral_value())

    def check(self, payload: dict[str, Any]) -> None:
        """Raise what OpenRouter reports in a choice when the model's server failed after it had begun."""
        for choice in payload.get("choices") or ():
            if isinstance(choice, dict) and choice.get("error"):
                raise hidden_failure(choice["error"])

    def _by_tokens(self, request: Request) -> bool:
        if self._mode == "auto":
            return request.prompt_ids is not None or self._renderer is not None
        return self._mode == "tokens"

    def _prompt_ids(self, request: Request) -> tuple[int, ...]:
        if request.prompt_ids is not None:
            return request.prompt_ids
        if self._renderer is None:
            raise DataError(
                "token mode needs prompt_ids or a renderer; give one, or use mode='chat'", field="prompt_ids"
            )
        return tuple(self._renderer.prompt_ids(request.messages, request.tools))

    def _completion_body(self, request: Request) -> dict[str, Any]:
        if request.constrain:
            raise DataError(
                "token mode cannot constrain; use mode='chat' or the transformers engine", field="constrain"
            )
        body = self._sampling(request.sampling) | {
            "prompt": list(self._prompt_ids(request)),
            "logprobs": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }
        if self._renderer is not None:
            body["stop_token_ids"] = list(self._renderer.stop_ids)
        return body

    def _chat_body(self, request: Request, dropped: list[str]) -> dict[str, Any]:
        body = self._sampling(request.sampling) | {
            "messages": messages_to_openai(replayable(request.messages), dropped=dropped, reasoning_key="both")
        }
        if request.tools:
            # "No tools" has one form only: the key is absent.
            body["tools"] = tools_to_openai(request.tools, dropped=dropped)
        if request.constrain:
            # All that this wire can say; a server may ignore it.
            for tool in body.get("tools", ()):
                tool["function"] = {**tool["function"], "strict": True}
        if request.json_schema is not None:
            wanted = {"name": "reply", "strict": True, "schema": dict(request.json_schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": wanted}
        if self._ask_ids:
            body |= {"return_token_ids": True, "logprobs": True}
        return body

    def _sampling(self, sampling: Sampling) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        return body

    @staticmethod
    def _with_ids(
        generation: Generation, choice: dict[str, Any], payload: dict[str, Any], logprobs: list[float] | None
    ) -> Generation:
        """Add the ids that the server tells. Ids and log-probabilities of unequal length are refused."""
        ids, prompt = choice.get("token_ids"), choice.get("prompt_token_ids") or payload.get("prompt_token_ids")
        if prompt is not None:
            generation = replace(generation, prompt_ids=tuple(prompt), prompt_tokens=len(prompt))
        if ids is None:
            return generation
        if logprobs is not None and (
            len(logprobs) != len(ids) or not all(isinstance(p, int | float) and math.isfinite(p) for p in logprobs)
        ):
            raise HttpFailure(
                ErrorKind.BAD_RESPONSE,
                f"{len(ids)} token ids with {len(logprobs)} logprobs; expected one finite number per id",
            )
        return replace(
            generation,
            ids=tuple(ids),
            output_tokens=len(ids),
            logprobs=None if logprobs is None else tuple(float(p) for p in logprobs),
        )


def _chat_logprobs(choice: dict[str, Any]) -> list[float] | None:
    content = (choice.get("logprobs") or {}).get("content")
    return None if content is None else [entry["logprob"] for entry in content]
