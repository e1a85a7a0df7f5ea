"""The processes: a start from a file, a stop that loses nobody's request, and deaths that lose no record."""

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
import yaml

from firstchair.gateway.control.store import ControlStore
from firstchair.gateway.records import decode_record
from firstchair.gateway.spool import Frame, SpoolReader
from firstchair.testing.gateway_server import provider
from firstchair.testing.scripted_upstream import Reply, Script

HELLO = {"model": "main", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
WAIT_S = 240


class Served:
    """A running ``firstchair gateway serve``."""

    def __init__(self, folder, process, key):
        self.folder, self.process, self.key = folder, process, key
        self.lines = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = f"http://127.0.0.1:{self.event('listening')['port']}"

    def _read(self):
        for line in self.process.stderr:
            with self._changed:
                self.lines.append(json.loads(line) if line.startswith("{") else {"event": "text", "text": line})
                self._changed.notify_all()

    def event(self, name):
        """The first log line of this event; waits for it."""

        def found():
            return next((line for line in self.lines if line["event"] == name), None)

        with self._changed:
            assert self._changed.wait_for(found, WAIT_S), self.lines
            return found()

    def ask(self, **more):
        return httpx.post(
            self.url + "/v1/messages", json={**HELLO, **more}, headers={"x-api-key": self.key}, timeout=WAIT_S
        )

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(WAIT_S) == 0, self.lines

    def ledger_rows(self):
        with (
            ControlStore.open(self.folder / "gateway.db", must_exist=True) as store,
            store.transaction() as connection,
        ):
            return connection.exec_driver_sql("SELECT call_id, outcome FROM gateway_ledger").all()

    def spooled(self):
        frames = SpoolReader(self.folder / "spool").records({})
        return [decode_record(frame.data).call_id for frame in frames if isinstance(frame, Frame)]


@contextmanager
def served(folder, upstream, **config):
    data = {
        "listen": {"port": 0, "admin_port": 0},
        "providers": {"up": provider(upstream.base_url, "anthropic")},
        "slots": [{"slot": "main", "primary": {"provider": "up", "model": "claude-sonnet-4-6"}}],
        **config,
    }
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump(data))
    with ControlStore.open(folder / "gateway.db") as store:
        key = store.create_key(f"test-{secrets.token_hex(4)}", who="test").secret
    process = subprocess.Popen(
        [sys.executable, "-m", "firstchair", "gateway", "serve", "--config", str(path)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield Served(folder, process, key)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()


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
