"""OpenTelemetry GenAI spans as JSON. Each model call is a span; calls become conversations and branches.

Convention read: semantic-conventions-genai 0.1.0 (attributes), and message events as of semantic-conventions 1.36.
Spans are grouped by ``gen_ai.conversation.id`` (without one: by trace) and put in order of time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from firstchair.chat.messages import Message
from firstchair.core.errors import DataError
from firstchair.core.jsonl import parse_line
from firstchair.core.jsonstream import read_records
from firstchair.traces.branches import RecordedCall
from firstchair.traces.importers.base import (
    Imported,
    ImportOptions,
    OfferedTools,
    ToolLists,
    default_tools,
    empty_file,
    mark_errors,
    safe_id,
)
from firstchair.traces.importers.exchanges import UNNAMED, group_sessions
from firstchair.traces.importers.otel_messages import (
    DETAILS_EVENT,
    messages_of_events,
    name_calls,
    read_instructions,
    read_messages,
    read_tools,
    structured,
)
from firstchair.traces.importers.otel_spans import Span, spans_in
from firstchair.traces.importers.spool import CallSpool
from firstchair.traces.redact import redact, redact_text
from firstchair.traces.session import ModelCall, Usage
from firstchair.traces.times import utc_text

MODEL_OPERATIONS = frozenset({"chat", "generate_content", "text_completion"})

MAX_DOCUMENT_BYTES = 256 * 1024 * 1024
"""Exporters write batches of spans as one document."""

_CONTENT = (
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.system_instructions",
    "gen_ai.tool.definitions",
)


def import_otel(path: Path, options: ImportOptions) -> Iterator[Imported]:
    """Read every model call of a file of spans, then yield the sessions that they make up."""
    lists = ToolLists(read_tools)
    fallback = default_tools(options, lists)
    tools = {"": OfferedTools(), fallback.catalog_id: fallback}
    seen = False
    with CallSpool() as spool:
        for record in read_records(path, max_record_bytes=MAX_DOCUMENT_BYTES, on_bytes=options.on_bytes):
            seen = True
            try:
                if isinstance(record.raw, DataError):
                    raise record.raw
                document = parse_line(record.raw)
                _take_record(document, record.origin, _Context(options, lists, fallback, tools, spool))
            except DataError as error:
                options.skip.take(error.at(record.path, record.line))
        if not seen:
            raise empty_file(path)
        if not len(spool):
            raise DataError(
                "found no model call with messages; expected spans with gen_ai.input.messages (switch on content "
                "capture in the instrumentation)",
                path=str(path),
            )
        for key, calls in spool.conversations():
            yield from group_sessions(key, calls, options, tools)


class _Context:
    def __init__(
        self,
        options: ImportOptions,
        lists: ToolLists,
        fallback: OfferedTools,
        tools: dict[str, OfferedTools],
        spool: CallSpool,
    ):
        self.options, self.lists, self.fallback, self.tools, self.spool = options, lists, fallback, tools, spool


def _take_record(record: dict[str, Any], origin: str, context: _Context) -> None:
    for where, span in spans_in(record):
        try:
            call = read_call(span, context)
        except DataError as error:
            field = ".".join(part for part in (where, error.field) if part)
            raise DataError(error.reason, field=field or None) from None
        if call is not None:
            key = span.attributes.get("gen_ai.conversation.id") or span.trace_id
            place = f"{origin}.{where}" if where else origin
            context.spool.put(safe_id(str(key)) or f"{UNNAMED}{place}", span.start_us, call, place)


def read_call(span: Span, context: _Context) -> RecordedCall | None:
    """The model call of a span; ``None`` for spans that are none, or that carry no messages."""
    attributes = {**_details(span), **span.attributes}
    if str(attributes.get("gen_ai.operation.name", "chat")) not in MODEL_OPERATIONS:
        return None
    prompt, reply = _messages(span, attributes)
    if not prompt:
        return None
    prefixes = context.options.error_prefixes or ()
    offered = context.fallback
    if definitions := attributes.get("gen_ai.tool.definitions"):
        text = definitions if isinstance(definitions, str) else None
        offered = OfferedTools(*context.lists.of_value(definitions), text)
    context.tools.setdefault(offered.catalog_id, offered)
    started = "" if span.start_us is None else utc_text(span.start_us)
    return RecordedCall(
        prompt=mark_errors(prompt, prefixes),
        reply=reply[:1],
        catalog_id=offered.catalog_id,
        created_at=started,
        call=_model_call(span, attributes, started, failed=span.failed or not reply),
        meta={
            "otel": redact({key: value for key, value in span.attributes.items() if key not in _CONTENT}),
            "labels": dict(context.options.labels),
            "source": context.options.source or "production",
        },
    )


def _details(span: Span) -> Mapping[str, Any]:
    for event in span.events:
        if event["name"] == DETAILS_EVENT:
            body = event["body"] if isinstance(event["body"], dict) else {}
            return {**event["attributes"], **body}
    return {}


def _messages(span: Span, attributes: Mapping[str, Any]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    if "gen_ai.input.messages" not in attributes:
        return messages_of_events(span.events, "events")
    prompt = read_messages(attributes["gen_ai.input.messages"], "gen_ai.input.messages")
    if attributes.get("gen_ai.system_instructions"):
        prompt = read_instructions(attributes["gen_ai.system_instructions"], "gen_ai.system_instructions") + prompt
    output = attributes.get("gen_ai.output.messages")
    reply = read_messages(output, "gen_ai.output.messages")[:1] if output else ()
    named = name_calls(prompt + reply)
    return named[: len(prompt)], named[len(prompt) :]


def _model_call(span: Span, attributes: Mapping[str, Any], started: str, *, failed: bool) -> ModelCall:
    took = None if span.start_us is None or span.end_us is None else (span.end_us - span.start_us) / 1000
    first = attributes.get("gen_ai.response.time_to_first_chunk")
    return ModelCall(
        call_id=str(attributes.get("gen_ai.response.id") or span.span_id),
        provider=str(attributes.get("gen_ai.provider.name") or attributes.get("gen_ai.system") or ""),
        model=str(attributes.get("gen_ai.response.model") or attributes.get("gen_ai.request.model") or ""),
        started_at=started,
        latency_ms=took,
        ttft_ms=first * 1000 if isinstance(first, int | float) else None,
        usage=otel_usage(attributes),
        error=safe_id(redact_text(str(attributes.get("error.type") or "error")))[:64] if failed else None,
        finish_reason=_finish_reason(attributes),
    )


def _finish_reason(attributes: Mapping[str, Any]) -> str | None:
    reasons = attributes.get("gen_ai.response.finish_reasons")
    if isinstance(reasons, str):
        # Some writers send the list as JSON text.
        reasons = structured(reasons, "gen_ai.response.finish_reasons") if reasons[:1] == "[" else [reasons]
    if not reasons:
        output = attributes.get("gen_ai.output.messages")
        rows = structured(output, "gen_ai.output.messages") if output else []
        reasons = [row.get("finish_reason") for row in rows[:1] if isinstance(row, dict)]
    return reasons[0] if isinstance(reasons, list) and reasons and isinstance(reasons[0], str) else None


def otel_usage(attributes: Mapping[str, Any]) -> Usage:
    """Disjoint counters. The convention's input count includes both cache counts; a writer whose input is smaller
    than its cache counts did not include them, and is taken at its word.
    """
    read = _count(attributes, "gen_ai.usage.cache_read.input_tokens")
    write = _count(attributes, "gen_ai.usage.cache_write.input_tokens", "gen_ai.usage.cache_creation.input_tokens")
    total = _count(attributes, "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
    return Usage(
        input=total - read - write if total >= read + write else total,
        output=_count(attributes, "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
        cache_read=read,
        cache_write=write,
    )


def _count(attributes: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = attributes.get(name)
        if value is None:
            continue
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
            raise DataError(f"found {value!r}; expected a count", field=name)
        return int(value)
    return 0
