"""Google's Gemini API: text in, text out.

POST /models/NAME:generateContent   contents, systemInstruction, generationConfig → candidates, usageMetadata
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from firstchair.catalog.token_counts import TokenCounts
from firstchair.catalog.usage import counts_from_gemini
from firstchair.chat.messages import Message, TextPart, ThinkingPart, assistant_message
from firstchair.core.errors import DataError
from firstchair.engines.base import Generation, Request, Stop
from firstchair.engines.http_engine import HttpEngine, HttpOptions

_STOPS: Mapping[str, Stop] = MappingProxyType(
    {
        "STOP": Stop.END,
        "MAX_TOKENS": Stop.LENGTH,
        "SAFETY": Stop.REFUSAL,
        "RECITATION": Stop.REFUSAL,
        "BLOCKLIST": Stop.REFUSAL,
        "PROHIBITED_CONTENT": Stop.REFUSAL,
        "SPII": Stop.REFUSAL,
    }
)
"""Any other reason (``OTHER``, ``LANGUAGE``, ``MALFORMED_FUNCTION_CALL``, …) is no answer."""


class GeminiEngine(HttpEngine):
    """An ``Engine`` over ``base_url`` (with its ``/v1beta``). Text only.

    Tools are refused: for a Gemini that calls them, ask its OpenAI-compatible address with ``OpenAIEngine``.
    """

    name = "gemini"
    sampling_at = "generationConfig"

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str = "none",
        concurrency: int = 16,
        options: HttpOptions | None = None,
    ):
        headers = {"x-goog-api-key": api_key}
        model = model.removeprefix("models/")
        super().__init__(base_url, model, headers=headers, options=options or HttpOptions(), concurrency=concurrency)

    def build(self, request: Request, dropped: list[str]) -> tuple[str, dict[str, Any]]:
        """Path and body. Ids, tools and constrained calls are refused."""
        for field, asked in (
            ("prompt_ids", request.prompt_ids is not None),
            ("constrain", request.constrain),
            ("tools", bool(request.tools)),
        ):
            if asked:
                raise DataError("the Gemini engine carries text alone; leave it unset", field=field)
        if request.json_schema is not None:
            dropped.append("json_schema")
        sampling = request.sampling
        config: dict[str, Any] = {"maxOutputTokens": sampling.max_new_tokens, "temperature": sampling.temperature}
        if sampling.top_p != 1.0:
            config["topP"] = sampling.top_p
        if sampling.top_k:
            config["topK"] = sampling.top_k
        if sampling.seed is not None:
            config["seed"] = sampling.seed
        system = [{"text": message.text} for message in request.messages if message.role == "system"]
        body: dict[str, Any] = {
            "contents": [
                _content(message, place, dropped)
                for place, message in enumerate(request.messages)
                if message.role != "system"
            ],
            "generationConfig": config,
        }
        if system:
            body["systemInstruction"] = {"parts": system}
        return f"/models/{quote(self.model, safe='')}:generateContent", body

    def read(self, request: Request, payload: dict[str, Any]) -> Generation:
        """The one candidate; a prompt that the filter blocked has none and is a refusal."""
        counts = self.counts(payload)
        usage: dict[str, Any] = {}
        if counts is not None:
            prompt = counts.input + counts.cache_read
            usage = {"prompt_tokens": prompt, "cached_tokens": counts.cache_read, "output_tokens": counts.output}
        candidates = payload.get("candidates") or []
        if not candidates and (payload.get("promptFeedback") or {}).get("blockReason"):
            return Generation(request_id=request.request_id, stop=Stop.REFUSAL, message=assistant_message(), **usage)
        (candidate,) = candidates
        reason = candidate.get("finishReason")
        if reason not in _STOPS:
            raise DataError(f"found {reason!r}; expected one of {', '.join(_STOPS)}", field="finishReason")
        parts = (candidate.get("content") or {}).get("parts") or []
        thinking = "".join(part["text"] for part in parts if part.get("thought"))
        text = "".join(part["text"] for part in parts if not part.get("thought"))
        message = assistant_message(text, thinking=thinking)
        return Generation(request_id=request.request_id, stop=_STOPS[reason], message=message, **usage)

    def counts(self, payload: dict[str, Any]) -> TokenCounts | None:
        """``usageMetadata`` as disjoint counters."""
        return counts_from_gemini(payload.get("usageMetadata"))

    def served_model(self, payload: dict[str, Any]) -> str:
        """``modelVersion``."""
        return str(payload.get("modelVersion") or "")


def _content(message: Message, place: int, dropped: list[str]) -> dict[str, Any]:
    where = f"messages[{place}]"
    if message.role == "tool" or message.tool_calls:
        raise DataError("calls of tools are not carried; ask Gemini's OpenAI-compatible address", field=where)
    parts = []
    for part in message.content:
        if isinstance(part, TextPart):
            parts.append({"text": part.text})
        elif isinstance(part, ThinkingPart):
            dropped.append(f"{where}: thinking of another answer")
        else:
            raise DataError(f"found a part of type {type(part).__name__}; expected text", field=where)
    return {"role": "model" if message.role == "assistant" else "user", "parts": parts}
