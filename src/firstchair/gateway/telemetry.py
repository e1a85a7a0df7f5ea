"""OpenTelemetry: one span a call by the conventions for generative AI, and the client's trace passed on.

    client's traceparent ──→ span of the call ──→ traceparent to the provider
                   └── no exporter configured: passed on as it came

Spans exist only where the standard variables name an exporter (``OTEL_EXPORTER_OTLP_ENDPOINT``,
``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`` or ``OTEL_TRACES_EXPORTER``). They hold no content unless
``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` is true.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from firstchair.chat.messages import Message
from firstchair.core.errors import ConfigError
from firstchair.gateway.config import Provider
from firstchair.gateway.records import CallRecord, Outcome

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE = re.compile(r"[\x20-\x7e]{1,512}")
_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


def trace_headers(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """The client's trace context, where it is one."""
    parent = headers.get(b"traceparent", b"").decode("latin-1")
    if not _TRACEPARENT.fullmatch(parent):
        return {}
    found = {"traceparent": parent}
    state = headers.get(b"tracestate", b"").decode("latin-1")
    if _TRACESTATE.fullmatch(state):
        found["tracestate"] = state
    return found


def is_configured(environ: Mapping[str, str]) -> bool:
    """Whether the standard variables ask for spans."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environ.get("OTEL_TRACES_EXPORTER", "")
    if exporter:
        return exporter != "none"
    return bool(environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"))


def check_environment(environ: Mapping[str, str]) -> None:
    """Raise ``ConfigError`` for what ``tracer_provider`` would refuse; starts nothing."""
    if is_configured(environ):
        _sdk()
        _exporter(environ)


def tracer_provider(environ: Mapping[str, str]) -> Any:
    """The SDK as the variables configure it; ``None`` when they do not. Raises ``ConfigError``."""
    if not is_configured(environ):
        return None
    _sdk()
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(
        resource=Resource.create({SERVICE_NAME: environ.get("OTEL_SERVICE_NAME", "firstchair")})
    )
    provider.add_span_processor(BatchSpanProcessor(_exporter(environ)))
    return provider


def _sdk() -> None:
    try:
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError:
        raise ConfigError(
            "OpenTelemetry is asked for by OTEL_… variables and not installed; run: pip install 'firstchair[otel]'"
        ) from None


def _exporter(environ: Mapping[str, str]) -> Any:
    name = environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    if name != "otlp":
        raise ConfigError(f"OTEL_TRACES_EXPORTER: found {name!r}; expected otlp, console or none")
    protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in (None, "http/protobuf"):
        raise ConfigError(f"OTEL_EXPORTER_OTLP_PROTOCOL: found {protocol!r}; expected http/protobuf")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise ConfigError("the OTLP exporter is not installed; run: pip install 'firstchair[otel]'") from None
    return OTLPSpanExporter()


class Telemetry:
    """The spans of one worker. Without a provider it only passes trace contexts on."""

    def __init__(self, provider: Any, providers: Callable[[], Mapping[str, Provider]], *, content: bool = False):
        self._provider, self._providers, self._content = provider, providers, content
        self._tracer = provider.get_tracer("firstchair.gateway") if provider is not None else None
        self._open: dict[str, Any] = {}

    @classmethod
    def from_environment(
        cls, providers: Callable[[], Mapping[str, Provider]], environ: Mapping[str, str] = os.environ
    ) -> Telemetry:
        """By the standard variables. Raises ``ConfigError``."""
        content = environ.get(_CONTENT, "").lower() in ("true", "1", "span_only", "span_and_event")
        return cls(tracer_provider(environ), providers, content=content)

    def begin(self, call_id: str, headers: Mapping[bytes, bytes], received_us: int) -> dict[str, str]:
        """Open the span of a call; the headers that carry it on to a provider."""
        carried = trace_headers(headers) if b"traceparent" in headers else {}
        if self._tracer is None:
            return carried
        from opentelemetry.trace import SpanKind, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        propagator = TraceContextTextMapPropagator()
        span = self._tracer.start_span(
            "chat", context=propagator.extract(carried), kind=SpanKind.CLIENT, start_time=received_us * 1000
        )
        self._open[call_id] = span
        out: dict[str, str] = {}
        propagator.inject(out, set_span_in_context(span))
        return out

    def forget(self, call_id: str) -> None:
        """The call ended without a record."""
        span = self._open.pop(call_id, None)
        if span is not None:
            span.end()

    def observe(self, record: CallRecord, _slot: object = None) -> None:
        """End the span of a finished call. A shadow call, which no client began, has a span of its own."""
        if self._tracer is None:
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode

        span = self._open.pop(record.call_id, None)
        if span is None:
            span = self._tracer.start_span("chat", kind=SpanKind.CLIENT, start_time=record.received_us * 1000)
        if span.is_recording():
            span.update_name(f"chat {record.provider_model or record.slot}".strip())
            span.set_attributes(self._attributes(record))
            if record.outcome is not Outcome.OK:
                span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=int(record.received_us * 1000 + record.latency_ms * 1e6))

    def _attributes(self, record: CallRecord) -> dict[str, Any]:
        provider, usage = self._providers().get(record.provider), record.usage
        found: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": _vendor(record.provider, provider),
            "gen_ai.request.model": record.provider_model or record.requested_model,
            "firstchair.call_id": record.call_id,
            "firstchair.slot": record.slot,
            "firstchair.provider": record.provider,
            "firstchair.variant": record.variant,
            "firstchair.attempts": len(record.attempts),
            "http.response.status_code": record.status,
        }
        if record.response_model:
            found["gen_ai.response.model"] = record.response_model
        if record.finish:
            found["gen_ai.response.finish_reasons"] = (record.finish,)
        if record.session:
            found["gen_ai.conversation.id"] = record.session
        if record.shadow_of:
            found["firstchair.shadow_of"] = record.shadow_of
        if usage is not None:
            written = usage.cache_write_5m + usage.cache_write_1h
            found["gen_ai.usage.input_tokens"] = usage.input + usage.cache_read + written
            found["gen_ai.usage.output_tokens"] = usage.output
            found["gen_ai.usage.cache_read.input_tokens"] = usage.cache_read
            found["gen_ai.usage.cache_creation.input_tokens"] = written
        if record.outcome is not Outcome.OK:
            found["error.type"] = record.failure.value if record.failure else record.outcome.value
        if self._content:
            found["firstchair.request"] = record.request.decode("utf-8", "replace")
            if record.answer is not None:
                found["gen_ai.output.messages"] = _output(record.answer, record.finish)
        return found

    def close(self) -> None:
        """Export what is left; blocks for as long as that takes."""
        if self._provider is not None:
            self._provider.shutdown()


def _vendor(name: str, provider: Provider | None) -> str:
    """As the conventions spell the well-known ones."""
    if provider is None or provider.type == "openai-compatible":
        return name or "firstchair"
    return provider.type


def _output(message: Message, finish: str) -> str:
    parts: list[dict[str, Any]] = [{"type": "text", "content": message.text}] if message.text else []
    parts += [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}
        for call in message.tool_calls
    ]
    return orjson.dumps([{"role": "assistant", "parts": parts, "finish_reason": finish}]).decode()
