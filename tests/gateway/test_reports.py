"""Metrics, log lines and spans of real calls."""

import gzip
import io
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from firstchair.catalog.token_counts import TokenCounts
from firstchair.core.errors import ConfigError
from firstchair.gateway.logs import MAX_LINES, CallLog, call_line
from firstchair.gateway.metrics import Metrics, metrics_text
from firstchair.gateway.records import CallRecord, Outcome
from firstchair.gateway.telemetry import Telemetry, check_environment, is_configured, trace_headers
from firstchair.testing.gateway_server import provider, running_gateway
from firstchair.testing.scripted_upstream import Fault, Reply, Script

BODY = {"model": "main", "messages": [{"role": "user", "content": "a private question"}]}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def gateway(folder, upstream, backup):
    providers = {"up": provider(upstream.base_url), "next": provider(backup.base_url)}
    slot = {
        "slot": "main",
        "primary": {"provider": "up", "model": "big"},
        "fallbacks": [{"provider": "next", "model": "spare"}],
        "retries": {"attempts": 1},
    }
    return running_gateway(folder, providers, [slot])


def ask(running, **headers):
    sent = {"authorization": f"Bearer {running.key}", "x-firstchair-session": "private-session", **headers}
    return httpx.post(running.url + "/v1/chat/completions", json=BODY, headers=sent, timeout=60)


def record(number=0, **more):
    fields = {"slot": "main", "provider": "up", "outcome": Outcome.OK, "worker": "w0", **more}
    return CallRecord(
        call_id=f"call_{number}", received_us=1_000_000, dialect="openai", requested_model="m", status=200, **fields
    )


def values(text):
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines)}


def test_metrics_of_real_calls_hold_no_key_and_no_session_and_outlive_the_worker(tmp_path, upstream, backup):
    upstream.script = Script((Reply(text="Hi"), Reply(fault=Fault("status", status=500))))
    with gateway(tmp_path, upstream, backup) as running:
        assert [ask(running).status_code for _ in range(2)] == [200, 200]
        running.records(2)
        running.app.reports.metrics.write()
        text = metrics_text(running.config.spool)
        found = values(text)
        assert found['firstchair_calls_total{slot="main",provider="up",variant="primary",outcome="ok"}'] == 1
        assert found['firstchair_fallbacks_total{slot="main",provider="next"}'] == 1
        assert found['firstchair_attempt_failures_total{provider="up",failure="server_error"}'] == 1
        assert found['firstchair_tokens_total{slot="main",provider="up",variant="primary",kind="output"}'] == 5
        assert found['firstchair_latency_seconds_count{slot="main",variant="primary"}'] == 1
        assert found['firstchair_latency_seconds_bucket{slot="main",variant="primary",le="+Inf"}'] == 1
        assert found['firstchair_breaker_workers{provider="up",state="closed"}'] == 1
        assert found["firstchair_workers"] == 1
        assert "# TYPE firstchair_latency_seconds histogram" in text
        assert "private" not in text
        assert running.key not in text
    again = Metrics(running.worker)  # the same worker in its next life
    again.observe(record(provider="next", variant="fallback"))
    again.write()
    found = values(metrics_text(running.config.spool))
    assert found['firstchair_fallbacks_total{slot="main",provider="next"}'] == 2


def test_numbers_of_all_workers_are_added_up_and_a_dead_one_keeps_only_its_counts(tmp_path, upstream, backup):
    with gateway(tmp_path, upstream, backup) as running:
        worker = running.worker
        mine = Metrics(worker)
        mine.observe(record(cost_nano=1_500_000_000, usage=TokenCounts(input=3)))
        worker.name = "w1"
        other = Metrics(worker)
        other.observe(record(cost_nano=500_000_000))
        other.observe(record(cost_nano=None))
        worker.count("budget_unreadable")
        mine.write()
        other.write()
        found = values(metrics_text(running.config.spool))
        assert found['firstchair_cost_usd_total{slot="main",provider="up",variant="primary"}'] == 2.0
        assert found['firstchair_unpriced_calls_total{slot="main",provider="up"}'] == 1
        assert found["firstchair_budget_unreadable_total"] >= 1
        assert found["firstchair_spool_lag_seconds"] == -1
        late = values(metrics_text(running.config.spool, now_s=4e9))
        assert "firstchair_workers" not in late
        assert late['firstchair_cost_usd_total{slot="main",provider="up",variant="primary"}'] == 2.0


def test_a_line_has_no_content_unless_it_is_asked_for():
    call = record(request=b'{"messages":"a private question"}', session="private-session", user="private-user")
    line = call_line(call)
    assert b"private" not in line
    assert json.loads(line)["outcome"] == "ok"
    assert "a private question" in json.loads(call_line(call, content=True))["request"]


def test_absurd_counts_of_a_provider_do_not_stop_the_log():
    line = json.loads(call_line(record(usage=TokenCounts(input=10**30))))
    assert line["input_tokens"] == str(10**30)


def test_lines_are_written_together_and_too_many_are_counted():
    stream = io.StringIO()
    log = CallLog(stream=stream)
    for number in range(MAX_LINES + 2):
        log.observe(record(number))
    log.write()
    assert len(stream.getvalue().splitlines()) == MAX_LINES
    assert log.dropped == 2


def test_a_trace_context_goes_on_to_the_provider_without_any_exporter(tmp_path, upstream, backup):
    with gateway(tmp_path, upstream, backup) as running:
        ask(running, traceparent=PARENT, tracestate="vendor=1")
        ask(running, traceparent="nonsense")
    first, second = (dict(seen.headers) for seen in upstream.requests)
    assert (first["traceparent"], first["tracestate"]) == (PARENT, "vendor=1")
    assert "traceparent" not in second


def test_a_call_is_one_span_in_the_clients_trace(tmp_path, upstream, backup):
    exporter, tracing = InMemorySpanExporter(), TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(exporter))
    upstream.script = Script((Reply(text="Hi"), Reply(fault=Fault("status", status=400))))
    with gateway(tmp_path, upstream, backup) as running:
        telemetry = Telemetry(tracing, lambda: running.config.providers)
        running.app.reports.telemetry = telemetry
        running.worker.observers.append(telemetry.observe)
        assert ask(running, traceparent=PARENT).status_code == 200
        assert ask(running).status_code == 400
        running.wait_until(lambda: len(exporter.get_finished_spans()) == 2)
    good, bad = exporter.get_finished_spans()
    assert good.name == "chat big"
    assert f"{good.context.trace_id:032x}" == TRACE
    assert f"{good.parent.span_id:016x}" == "00f067aa0ba902b7"
    sent = dict(upstream.requests[0].headers)["traceparent"]
    assert sent == f"00-{TRACE}-{good.context.span_id:016x}-01"
    attributes = dict(good.attributes)
    assert attributes["gen_ai.operation.name"] == "chat"
    assert (attributes["gen_ai.provider.name"], attributes["gen_ai.request.model"]) == ("up", "big")
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (10, 5)
    assert "error.type" not in attributes
    assert "private question" not in str(attributes)
    assert good.end_time > good.start_time
    assert bad.attributes["error.type"] == "bad_request"
    assert not bad.status.is_ok


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_the_standard_variables_decide(environ, found):
    assert is_configured(environ) is found


def test_an_exporter_that_is_not_known_is_refused_at_the_start():
    with pytest.raises(ConfigError, match="OTEL_TRACES_EXPORTER: found 'zipkin'; expected otlp, console or none"):
        check_environment({"OTEL_TRACES_EXPORTER": "zipkin"})


def test_a_trace_state_is_passed_on_only_beside_a_sound_parent():
    assert trace_headers({b"tracestate": b"a=1"}) == {}
    assert trace_headers({b"traceparent": PARENT.encode(), b"tracestate": b"a\r\nb"}) == {"traceparent": PARENT}


def test_spans_reach_a_collector_that_only_the_environment_names(monkeypatch):
    bodies = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            data = self.rfile.read(int(self.headers["content-length"]))
            bodies.append((self.path, gzip.decompress(data) if self.headers["content-encoding"] == "gzip" else data))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        telemetry = Telemetry.from_environment(dict)
        telemetry.begin("call_0", {b"traceparent": PARENT.encode()}, 1_000_000)
        telemetry.observe(record(latency_ms=2.0, request=b"a private question"))
        telemetry.close()
        server.shutdown()
        thread.join()
    ((path, body),) = bodies
    assert path == "/v1/traces"
    assert b"private" not in body
    (span,) = trace_pb.ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, "00f067aa0ba902b7")
    assert span.end_time_unix_nano - span.start_time_unix_nano == 2_000_000
