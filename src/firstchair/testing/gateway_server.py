"""One gateway worker in a thread of the test: a real port, a real spool, a real SQLite database; no sink.

with running_gateway(tmp_path, {"up": provider(upstream)}, [slot]) as gateway:
    OpenAI(base_url=gateway.url + "/v1", api_key=gateway.key).chat.completions.create(...)
    gateway.records()
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from firstchair.core.config import validate
from firstchair.gateway.app import GatewayApp
from firstchair.gateway.config import GatewayConfig
from firstchair.gateway.control.store import ControlStore
from firstchair.gateway.http_server import WorkerServer, make_server
from firstchair.gateway.records import CallRecord, decode_record
from firstchair.gateway.spool import Frame, SpoolReader
from firstchair.gateway.worker import Worker

WAIT_S = 120.0


class RunningGateway:
    """The worker while it runs."""

    def __init__(self, config: GatewayConfig, store: ControlStore, key: str, name: str = "w0"):
        self.config, self.store, self.key, self.name = config, store, key, name
        self.worker: Worker
        self.app: GatewayApp
        self.url = ""
        self._server: WorkerServer
        self._loop: asyncio.AbstractEventLoop
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)

    def start(self) -> None:
        self._thread.start()
        if not self._ready.wait(WAIT_S):
            raise TimeoutError("the gateway did not start")

    def stop(self) -> None:
        """Finish what is under way, then end."""
        self._server.should_exit = True
        self._thread.join(WAIT_S)

    def records(self, count: int = 1) -> list[CallRecord]:
        """The records, once there are ``count``; raises ``TimeoutError``."""
        deadline = time.monotonic() + WAIT_S
        while True:
            frames = SpoolReader(self.config.spool).records({})
            found = [decode_record(frame.data) for frame in frames if isinstance(frame, Frame)]
            if len(found) >= count:
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(found)} records; expected {count}")
            time.sleep(0.005)

    def wait_until(self, true: Callable[[], bool]) -> None:
        """Wait for what shows only inside the worker; raises ``TimeoutError``."""
        deadline = time.monotonic() + WAIT_S
        while not true():
            if time.monotonic() > deadline:
                raise TimeoutError("not seen in the worker")
            time.sleep(0.005)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self.worker = Worker(self.config, self.name, self.store)
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.app = GatewayApp(self.worker)
        self._server = make_server(self.app, drain_s=self.config.drain_s)
        self.worker.ready = self._ready.set
        await self._server.serve(sockets=[listener])


def provider(base_url: str, kind: str = "openai-compatible", **fields: Any) -> dict[str, Any]:
    """A provider of the configuration."""
    path = "" if kind == "anthropic" else "/v1"
    return {"type": kind, "base_url": base_url + path, **fields}


@contextmanager
def running_gateway(
    folder: Path,
    providers: Mapping[str, Mapping[str, Any]],
    slots: Sequence[Mapping[str, Any]],
    key_limits: Any = None,
    *,
    name: str = "w0",
    **config: Any,
) -> Iterator[RunningGateway]:
    """A gateway with one key; everything it writes is under ``folder``.

    Several on one ``database`` have a ``name`` each; what slots it has already stay.
    """
    data = {
        "providers": providers,
        "slots": slots,
        "database": str(folder / "gateway.db"),
        "spool": folder / "spool",
        "recording": {"store": str(folder / "traces.db")},
        "drain_s": 1,
        **config,
    }
    settings = validate(GatewayConfig, data, source="test")
    with ControlStore.open(settings.database, providers=settings.providers) as store:
        store.add_missing(settings.slots, who="test")
        limits = {} if key_limits is None else {"limits": key_limits}
        key = store.create_key(f"test-{name}", who="test", **limits).secret
        gateway = RunningGateway(settings, store, key, name)
        gateway.start()
        try:
            yield gateway
        finally:
            gateway.stop()
