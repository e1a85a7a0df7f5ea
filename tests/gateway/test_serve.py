"""The processes: a start from a file, a stop that loses nobody's request, and deaths that lose no record."""

import json
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import yaml
from tests.gateway.served import WAIT_S, served

from firstchair.gateway.control.keys import KeyLimits
from firstchair.gateway.control.slots import Route
from firstchair.gateway.control.store import ControlStore
from firstchair.gateway.serve import _outlive_nobody
from firstchair.testing.gateway_server import provider
from firstchair.testing.scripted_upstream import Fault, Reply, Script


def test_a_stop_under_load_loses_no_request_and_every_call_is_in_the_ledger(tmp_path, upstream):
    upstream.script = Script((Reply(text="one two three", event_pause_s=0.02),))
    with served(tmp_path, upstream, workers=2) as gateway:
        assert gateway.ask().status_code == 200
        with ThreadPoolExecutor(8) as pool:
            running = [pool.submit(gateway.ask, stream=True) for _ in range(24)]
            upstream.wait_until(lambda it: len(it.requests) >= 9)
            gateway.process.send_signal(signal.SIGTERM)
            answers = []
            for future in running:
                try:
                    answers.append(future.result())
                except httpx.ConnectError:
                    continue  # it came after the port was closed, and was told so
        assert gateway.process.wait(WAIT_S) == 0, gateway.lines
        assert len(answers) >= 8
        assert all("event: message_stop" in answer.text for answer in answers)
        rows = dict(gateway.ledger_rows())
        ids = [answer.headers["request-id"] for answer in answers]
        assert {rows[call_id] for call_id in ids} == {"ok"}
        assert len(rows) == len(upstream.requests)
        assert gateway.spooled() == []


def test_a_killed_gateway_keeps_what_its_clients_saw_complete(tmp_path, upstream):
    with served(tmp_path, upstream) as gateway:
        ids = [gateway.ask().headers["request-id"] for _ in range(5)]
        os.killpg(gateway.process.pid, signal.SIGKILL)
        gateway.process.wait()
        kept = {*gateway.spooled(), *(row[0] for row in gateway.ledger_rows())}
        assert set(ids) <= kept
    with served(tmp_path, upstream) as gateway:
        ids.append(gateway.ask().headers["request-id"])
        gateway.stop()
        assert sorted(row[0] for row in gateway.ledger_rows()) == sorted(ids)


def test_what_a_gateway_that_is_gone_had_set_aside_counts_as_spent_after_the_next_start(tmp_path, upstream):
    path = tmp_path / "gateway.db"
    long_ago = time.time_ns() // 1000 - 3_600_000_000
    with ControlStore.open(path, now_us=lambda: long_ago) as store:
        key = store.create_key("poor", limits=KeyLimits(budget_nano=100), who="test").key
        store.heartbeat("gone-w0", 0)
        assert store.reserve(key.key_id, 60, worker="gone-w0")
    with served(tmp_path, upstream), ControlStore.open(path) as store:
        spend = store.spend(key.key_id)
        assert (spend.spent_nano, spend.reserved_nano) == (60, 0)


STOPPED_AT_BIRTH = """
import os, signal, socket, time
from firstchair.gateway.serve import _Child, _Parent
parent = _Parent(None, socket.socket(), [], None, None)
signal.signal(signal.SIGTERM, parent._stop_asked)
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
pid = parent._fork(_Child("w0", lambda *_: time.sleep(60)))
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_stop_that_reaches_a_process_at_its_birth_is_not_lost():
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_AT_BIRTH], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    assert done.stdout == f"{-signal.SIGTERM}\n", done.stderr


def test_a_slot_that_was_edited_in_the_file_is_named_when_the_database_has_another(tmp_path, upstream):
    first = {"slot": "main", "match": ["claude-*"], "primary": {"provider": "up", "model": "a"}}
    second = {"slot": "second", "primary": {"provider": "up", "model": "b"}}
    with served(tmp_path, upstream, slots=[first]) as gateway:
        gateway.stop()
        assert "slots_not_applied" not in {line["event"] for line in gateway.lines}
    with ControlStore.open(tmp_path / "gateway.db") as store:
        store.promote("main", Route(provider="up", model="c"), who="ann", override="it is better")
    with served(tmp_path, upstream, slots=[first, second]) as gateway:
        line = gateway.event("slots_not_applied")
        gateway.stop()
    assert line["slots"] == ["second"]  # the promoted one stands in the file as it was then
    assert "firstchair gateway slots set FILE" in line["text"]
    with served(tmp_path, upstream, slots=[{**first, "match": ["gpt-*"]}]) as gateway:
        assert gateway.event("slots_not_applied")["slots"] == ["main"]
        gateway.stop()


def test_what_the_gateway_writes_is_for_its_user_alone(tmp_path, upstream):
    before = os.umask(0o022)
    try:
        with served(tmp_path, upstream) as gateway:
            assert gateway.ask(messages=[{"role": "user", "content": "x" * 300_000}]).status_code == 200
            gateway.stop()
    finally:
        os.umask(before)
    found = {path: path.stat().st_mode & 0o077 for path in tmp_path.rglob("*") if path.name != "gateway.yaml"}
    assert [path for path in found if path.parent.parent.name == "blobs"]
    assert {"gateway.db", "traces.db", "sink.json"} <= {path.name for path in found}
    assert {path.name for path, others in found.items() if others} == set()


def test_a_worker_that_dies_is_started_again(tmp_path, upstream):
    with served(tmp_path, upstream) as gateway:
        assert gateway.ask().status_code == 200
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(gateway.process.pid)], capture_output=True, text=True, check=True
        )
        for pid in map(int, children.stdout.split()):
            os.kill(pid, signal.SIGKILL)
        gateway.event("restarting")
        assert gateway.ask().status_code == 200
        gateway.stop()
        assert len(gateway.ledger_rows()) == 2


def test_a_secret_is_found_in_no_sink_after_success_and_after_failure(tmp_path, upstream, monkeypatch):
    provider_key = "prov" + secrets.token_hex(16)
    monkeypatch.setenv("PROVIDER_KEY", provider_key)
    body, result, error = (f"sk-ant-api03-{name}{secrets.token_hex(20)}" for name in ("body", "result", "error"))
    upstream.script = Script(
        (
            Reply(text="Hello."),
            Reply(text="Hello."),
            Reply(fault=Fault("status", status=400, message=f"{error} and {provider_key} are wrong")),
            Reply(text="one two three", fault=Fault("error_late", after=5, message=f"{error} {provider_key}")),
        )
    )
    messages = [
        {"role": "user", "content": f"my key is {body}"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {"k": body}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": f"it is {result}"}]},
    ]
    with served(
        tmp_path,
        upstream,
        providers={"up": provider(upstream.base_url, "anthropic", api_key_env="PROVIDER_KEY")},
        recording={"idle_s": 0.01},
    ) as gateway:
        tokens = [gateway.key, provider_key, body, result, error]
        bearer = {"authorization": f"Bearer {gateway.key}", "x-api-key": body}
        answers = [
            gateway.ask(messages=messages),
            gateway.ask(messages=messages, headers=bearer),
            gateway.ask(messages=messages),
            gateway.ask(messages=messages, stream=True),
            gateway.ask(headers={"x-api-key": body}),
            httpx.get(gateway.url + "/readyz"),
            httpx.get(gateway.url + "/metrics"),
        ]
        assert [answer.status_code for answer in answers[:5]] == [200, 200, 400, 200, 401]
        gateway.stop()
        assert len(gateway.ledger_rows()) == 5
        for token in (provider_key, body, result):
            assert token in f"{upstream.requests[0].headers} {upstream.requests[0].body}"
        kept = everything_in(tmp_path)
        kept += json.dumps(gateway.lines).encode()
        kept += b"".join(str(answer.headers).encode() + answer.content for answer in answers)
        assert b"my key is" in kept
        for token in tokens:
            assert token.encode() not in kept


def everything_in(folder):
    """The bytes of every file, and what databases hold compressed."""
    found = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    for path in folder.glob("*.db"):
        with sqlite3.connect(path) as database:
            for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                for row in database.execute(f'SELECT * FROM "{table}"'):
                    found += [plain_of(value) for value in row if isinstance(value, bytes)]
        database.close()
    return b"".join(found)


def plain_of(value):
    try:
        return zlib.decompress(value)
    except zlib.error:
        return value


def test_the_sink_waits_for_its_parents_end_on_a_pipe_that_an_event_loop_made_non_blocking():
    read, write = os.pipe()
    os.set_blocking(read, False)
    stop = threading.Event()
    watching = threading.Thread(target=_outlive_nobody, args=(read, stop), daemon=True)
    watching.start()
    watching.join(0.1)
    assert watching.is_alive()
    assert not stop.is_set()
    os.close(write)
    watching.join(WAIT_S)
    assert stop.is_set()
    os.close(read)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"providers": {"up": {"type": "anthropic", "base_url": "https://x", "api_key_env": "NOT_SET_HERE"}}},
            "NOT_SET",
        ),
        ({"listen": {"host": "192.0.2.1"}}, "cannot bind 192.0.2.1"),
    ],
)
def test_what_is_wrong_is_told_before_anything_starts(tmp_path, upstream, config, words):
    path = tmp_path / "gateway.yaml"
    path.write_text(yaml.safe_dump({"providers": {"up": provider(upstream.base_url)}, **config}))
    done = subprocess.run(
        [sys.executable, "-m", "firstchair", "gateway", "serve", "--config", str(path)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
