"""OpenTelemetry spans from JSON: OTLP documents, flat span lists, spans one a line, all as one plain form.

{"resourceSpans": [{"scopeSpans": [{"spans": [{"attributes": [{"key", "value": {"stringValue"}}]}]}]}]}
[{"name", "trace_id", "span_id", "start_time", "attributes": {...}, "events": [...]}]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from firstchair.core.errors import DataError
from firstchair.traces.times import microseconds, normal_time


class Span(msgspec.Struct, frozen=True):
    """A span as far as we need it."""

    span_id: str
    trace_id: str
    name: str
    start_us: int | None
    end_us: int | None
    attributes: dict[str, Any]
    events: list[dict[str, Any]]
    """``{"name", "attributes", "body"}``."""
    failed: bool


def spans_in(record: Mapping[str, Any]) -> Iterator[tuple[str, Span]]:
    """``(place in the record, span)`` of every span in one JSON object. Raises ``DataError``."""
    resources = record.get("resourceSpans", record.get("resource_spans"))
    if resources is None:
        if "attributes" not in record:
            raise DataError("no such field; expected an OTLP document or a span", field="attributes")
        yield "", read_span(record, "")
        return
    for i, resource in enumerate(_list(resources, "resourceSpans")):
        for j, scope in enumerate(_list(_either(resource, "scopeSpans", "scope_spans"), f"resourceSpans[{i}]")):
            for k, span in enumerate(_list(scope.get("spans"), f"resourceSpans[{i}].scopeSpans[{j}]")):
                where = f"resourceSpans[{i}].scopeSpans[{j}].spans[{k}]"
                yield where, read_span(span, where)


def _list(value: Any, field: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise DataError(f"found {type(value).__name__}; expected a list of objects", field=field)
    return value


def read_span(span: Mapping[str, Any], where: str) -> Span:
    """One span, OTLP or flat. Raises ``DataError`` with ``field``."""
    context = span.get("context") if isinstance(span.get("context"), dict) else {}
    status = span.get("status")
    code = _either(status, "code", "status_code") if isinstance(status, dict) else status
    inside = f"{where}." if where else ""
    attributes = read_attributes(span.get("attributes"), f"{inside}attributes")
    return Span(
        span_id=_id(span, context, "spanId", "span_id"),
        trace_id=_id(span, context, "traceId", "trace_id"),
        name=str(span.get("name") or ""),
        start_us=_time(span, "startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime"),
        end_us=_time(span, "endTimeUnixNano", "end_time_unix_nano", "end_time", "endTime"),
        attributes=attributes,
        events=[_event(event, f"{inside}events") for event in _list(span.get("events"), f"{inside}events")],
        failed=code in (2, "ERROR", "STATUS_CODE_ERROR", "error") or "error.type" in attributes,
    )


def _id(span: Mapping[str, Any], context: Any, *names: str) -> str:
    for holder in (span, context):
        value = _either(holder, *names)
        if isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)
    return ""


def _either(holder: Any, *names: str) -> Any:
    return next((holder[name] for name in names if name in holder), None) if isinstance(holder, dict) else None


def _time(span: Mapping[str, Any], *names: str) -> int | None:
    value = _either(span, *names)
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    return microseconds(normal_time(value, field=names[0]))


def _event(event: Mapping[str, Any], field: str) -> dict[str, Any]:
    return {
        "name": str(event.get("name") or event.get("event_name") or ""),
        "attributes": read_attributes(event.get("attributes"), field),
        "body": _any_value(event.get("body"), field),
    }


def read_attributes(value: Any, field: str) -> dict[str, Any]:
    """Attributes as a plain object, from an object or from OTLP's list of ``{key, value}``."""
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for item in _list(value, field):
        if not isinstance(item.get("key"), str):
            raise DataError("found an attribute without a key; expected {key, value}", field=field)
        found[item["key"]] = _any_value(item.get("value"), field)
    return found


def _any_value(value: Any, field: str) -> Any:
    """A plain value of OTLP's ``AnyValue``; what is none stays as it is."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((kind, inner),) = value.items()
    match kind:
        case "stringValue" | "boolValue" | "doubleValue" | "bytesValue":
            return inner
        case "intValue":
            try:
                return int(inner)
            except (TypeError, ValueError):
                raise DataError(f"found {inner!r}; expected an integer", field=f"{field}.intValue") from None
        case "arrayValue":
            return [_any_value(item, field) for item in _list(_either(inner, "values"), field)]
        case "kvlistValue":
            return read_attributes(_either(inner, "values"), field)
    return value
