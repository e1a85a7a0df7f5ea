"""``firstchair gateway serve`` as its own processes, for tests of starts, stops and reloads."""

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import httpx
import yaml

from firstchair.gateway.control.store import ControlStore
from firstchair.gateway.records import decode_record
from firstchair.gateway.spool import Frame, SpoolReader
from firstchair.testing.gateway_server import provider

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

    def ask(self, headers=None, **more):
        headers = headers or {"x-api-key": self.key}
        return httpx.post(self.url + "/v1/messages", json={**HELLO, **more}, headers=headers, timeout=WAIT_S)

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
