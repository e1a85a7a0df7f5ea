"""The prompt that a serving endpoint makes of messages: asked from a vLLM-compatible server, or made locally."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

import httpx

from firstchair.chat.messages import Tool
from firstchair.chat.openai_wire import messages_to_openai, tools_to_openai
from firstchair.chat.parity import Case, Rendered
from firstchair.chat.renderer import Renderer
from firstchair.core.errors import UpstreamError


class PromptEndpoint:
    """``/tokenize``, ``/detokenize`` and ``/v1/completions`` of one server."""

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        timeout_s: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ):
        """``base_url`` with or without ``/v1``; ``model`` defaults to the first that the server lists."""
        root = base_url.rstrip("/").removesuffix("/v1")
        self._client = httpx.Client(base_url=root, timeout=timeout_s, transport=transport)
        self._template_kwargs = dict(template_kwargs or {})
        self.model = model or self._first_model()

    def __enter__(self) -> PromptEndpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def prompt(self, case: Case) -> Rendered:
        """The server's prompt of ``case``. Raises ``UpstreamError`` when it gives none."""
        body: dict[str, Any] = {
            "model": self.model,
            # Servers differ in the name under which they read reasoning.
            "messages": messages_to_openai(case.messages, dropped=[], reasoning_key="both"),
            "add_generation_prompt": True,
        }
        if case.tools:
            body["tools"] = tools_to_openai(case.tools, dropped=[])
        if self._template_kwargs:
            body["chat_template_kwargs"] = self._template_kwargs
        ids = self._post("/tokenize", body).get("tokens")
        if not isinstance(ids, list):
            raise UpstreamError("/tokenize answered without tokens; is this a vLLM server?")
        text = self._post("/detokenize", {"model": self.model, "tokens": ids}).get("prompt")
        return Rendered(tuple(ids), text if isinstance(text, str) else None)

    def echo(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """The prompt ids that the server says it ran when it is sent ``ids``."""
        body = {"model": self.model, "prompt": list(ids), "max_tokens": 1, "temperature": 0, "return_token_ids": True}
        answer = self._post("/v1/completions", body)
        ran = (answer.get("choices") or [{}])[0].get("prompt_token_ids")
        if not isinstance(ran, list):
            raise UpstreamError("/v1/completions answered without prompt_token_ids; the server cannot be checked")
        return tuple(ran)

    def _first_model(self) -> str:
        answer = self._call("GET", "/v1/models", None)
        models = answer.get("data") or []
        if not models:
            raise UpstreamError("the server lists no model; pass --model-name")
        return str(models[0]["id"])

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._call("POST", path, body)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        try:
            response = self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            root = str(self._client.base_url).rstrip("/")
            raise UpstreamError(f"{root}{path}: {error!r}", retryable=True) from None
        if response.status_code != 200:
            raise UpstreamError(
                f"{path} answered {response.status_code}: {response.text[:300]}", status=response.status_code
            )
        try:
            value = response.json()
        except ValueError:
            raise UpstreamError(f"{path} answered something that is not JSON: {response.text[:300]!r}") from None
        if not isinstance(value, dict):
            raise UpstreamError(f"{path} answered {type(value).__name__}; expected an object")
        return value


def local_prompt(renderer: Renderer, case: Case) -> Rendered:
    """The prompt that ``transformers`` makes with the same tokenizer and template. Raises ``UpstreamError``."""
    rows = messages_to_openai(case.messages, dropped=[])
    for row in rows:
        # apply_chat_template knows no content lists for text models; servers join text parts by a newline.
        if isinstance(row.get("content"), list):
            row["content"] = "\n".join(part.get("text", "") for part in row["content"])
        for call in row.get("tool_calls", ()):
            _parse_arguments(call)
    tools = _tools(case.tools)
    # A template that refuses a conversation raises an exception of Jinja's, as a server would answer 400.
    from jinja2 import TemplateError

    try:
        text = renderer.tokenizer.apply_chat_template(
            rows,
            tools=tools,
            chat_template=renderer.template.text,
            add_generation_prompt=True,
            tokenize=False,
            **renderer.variables,
        )
    except (TemplateError, TypeError, ValueError) as error:
        raise UpstreamError(f"apply_chat_template refuses: {error}") from None
    ids = renderer.tokenizer(text, add_special_tokens=False)["input_ids"]
    return Rendered(tuple(ids), text)


def _parse_arguments(call: dict[str, Any]) -> None:
    from firstchair.core.jsontext import JsonProblem, loads

    try:
        value = loads(call["function"]["arguments"])
    except JsonProblem:
        return
    call["function"]["arguments"] = value


def _tools(tools: tuple[Tool, ...]) -> list[dict[str, Any]] | None:
    return tools_to_openai(tools, dropped=[]) or None
