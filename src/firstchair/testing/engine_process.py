"""A real inference server as a process of a slow test: a free port, its output in a file, gone afterwards."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from firstchair.core.errors import RunFailed

START_S = 300.0


@dataclass(frozen=True)
class EngineProcess:
    """A running server."""

    port: int
    pid: int
    """Of the process group's leader."""
    log: Path

    @property
    def openai_url(self) -> str:
        """With ``/v1``."""
        return f"http://127.0.0.1:{self.port}/v1"

    def kill(self) -> None:
        """SIGKILL to the server and its workers, as a machine that dies would."""
        os.killpg(self.pid, signal.SIGKILL)


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@contextmanager
def running_engine(
    name: str, command: Sequence[str], port: int, log: Path, *, environment: Mapping[str, str] | None = None
) -> Iterator[EngineProcess]:
    """Run ``command`` until the block ends; it is ready when ``/health`` of ``port`` answers 200.

    Raises ``RunFailed`` with the log's end when it does not come up.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    server = EngineProcess(port=port, pid=process.pid, log=log)
    try:
        _wait(name, server, process)
        yield server
    finally:
        _end(process)


def _wait(name: str, server: EngineProcess, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RunFailed(f"{name} ended with exit code {process.returncode}: {_tail(server.log)}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health", timeout=2):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.5)
    raise RunFailed(f"{name} did not answer within {START_S:g} s: {_tail(server.log)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    for sign, wait_s in ((signal.SIGTERM, 20), (signal.SIGKILL, 20)):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]
