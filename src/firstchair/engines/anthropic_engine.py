"""Any server that speaks Anthropic's Messages API."""

from __future__ import annotations

from typing import Any

from firstchair.catalog.token_counts import TokenCounts
from firstchair.catalog.usage import counts_from_anthropic
from firstchair.chat.anthropic_wire import message_from_anthropic_response, messages_to_anthropic, tools_to_anthropic
from firstchair.chat.wire_request import finish_from_anthropic, usage_from_anthropic
from firstchair.core.errors import DataError
from firstchair.engines.base import Generation, Request
from firstchair.engines.http_engine import HttpEngine, HttpOptions
from firstchair.engines.stops import stop_of

API_VERSION = "2023-06-01"


class AnthropicEngine(HttpEngine):
    """An ``Engine`` over ``base_url`` (with or without ``/v1``). Messages only: no ids, no log-probabilities."""

    name = "anthropic"

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str = "none",
        concurrency: int = 16,
        options: HttpOptions | None = None,
    ):
        headers = {"x-api-key": api_key, "anthropic-version": API_VERSION}
        # An OpenAI URL given out of habit would ask for /v1/v1/messages.
        url = base_url.rstrip("/").removesuffix("/v1")
        super().__init__(url, model, headers=headers, options=options or HttpOptions(), concurrency=concurrency)

    def build(self, request: Request, dropped: list[str]) -> tuple[str, dict[str, Any]]:
        """Path and body. Ids, a seed and constrained calls have no counterpart here and are refused."""
        sampling = request.sampling
        for field, asked in (
            ("prompt_ids", request.prompt_ids is not None),
            ("constrain", request.constrain),
            ("sampling.seed", sampling.seed is not None),
        ):
            if asked:
                raise DataError("the Anthropic API has no such field; leave it unset", field=field)
        if request.json_schema is not None:
            dropped.append("json_schema")
        prompt = messages_to_anthropic(request.messages, dropped=dropped)
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "messages": prompt.messages,
        }
        if prompt.system:
            body["system"] = prompt.system
        if request.tools:
            body["tools"] = tools_to_anthropic(request.tools, dropped=dropped)
        if sampling.top_p != 1.0:
            body["top_p"] = sampling.top_p
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        return "/v1/messages", body

    def read(self, request: Request, payload: dict[str, Any]) -> Generation:
        """The message of the answer; Anthropic's three input counters are added up in ``prompt_tokens``."""
        usage = usage_from_anthropic(payload.get("usage") or {})
        return Generation(
            request_id=request.request_id,
            stop=stop_of(finish_from_anthropic(payload.get("stop_reason"), has_calls=False)),
            message=message_from_anthropic_response(payload),
            prompt_tokens=usage.input + usage.cache_read + usage.cache_write,
            output_tokens=usage.output if payload.get("usage") else None,
            cached_tokens=usage.cache_read,
        )

    def counts(self, payload: dict[str, Any]) -> TokenCounts | None:
        """``usage`` as disjoint counters, both kinds of cache writes apart."""
        return counts_from_anthropic(payload.get("usage"))
