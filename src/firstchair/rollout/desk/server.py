"""The desk's teacher behind HTTP: for the command line, for the demo, and for anything that wants a model to call.

    with running_teacher(mistake_rate=0.1, seed=7) as teacher:
        OpenAI(base_url=teacher.openai_url, api_key="any").chat.completions.create(model=teacher.model, …)
        Anthropic(base_url=teacher.base_url, api_key="any").messages.create(model=teacher.model, …)

It listens on the loopback address unless told otherwise: there is no authentication.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from firstchair.core.errors import ConfigError, RunFailed
from firstchair.core.extras import require

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from uvicorn import Server

MODEL = "desk-teacher"
START_S = 30.0
"""How long a new process may take to answer its first request."""


@dataclass(frozen=True)
class TeacherServer:
    """Where a running teacher can be called."""

    host: str
    port: int
    model: str = MODEL
    pid: int | None = None
    """Of the serving process; ``None`` when it is a thread of this one."""

    @property
    def base_url(self) -> str:
        """For Anthropic clients, which add ``/v1`` themselves."""
        return f"http://{self.host}:{self.port}"

    @property
    def openai_url(self) -> str:
        """For OpenAI clients, which want it."""
        return f"{self.base_url}/v1"


def teacher_app(*, mistake_rate: float = 0.0, seed: int = 0, model: str = MODEL) -> Starlette:
    """The application: a ``Teacher`` with the given mistakes."""
    from firstchair.rollout.actor_app import build_app
    from firstchair.rollout.desk.teacher import Teacher

    return build_app(Teacher(mistake_rate=mistake_rate, seed=seed), model)


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that already listens, so that a client's first connection waits instead of failing.

    Port 0 takes a free one. Raises ``ConfigError`` when the address cannot be had.
    """
    try:
        return socket.create_server((host, port), backlog=1024)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error


def uvicorn_server(app: Starlette) -> Server:
    """uvicorn with the C event loop and parser where they are installed, no access log, no signal surprises."""
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(app, access_log=False, log_level="warning", ws="none", lifespan="off", server_header=False)
    )


def serve(
    host: str = "127.0.0.1",
    port: int = 8100,
    *,
    mistake_rate: float = 0.0,
    seed: int = 0,
    model: str = MODEL,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until interrupted; ``ready`` hears the address once connections are accepted."""
    require("gateway")
    with listening_socket(host, port) as sock:
        ready(TeacherServer(host=host, port=sock.getsockname()[1], model=model).base_url)
        uvicorn_server(teacher_app(mistake_rate=mistake_rate, seed=seed, model=model)).run(sockets=[sock])


@contextmanager
def running_app(
    app: Starlette, *, host: str = "127.0.0.1", port: int = 0, model: str = MODEL
) -> Iterator[TeacherServer]:
    """Serve any application in a thread for the length of the block."""
    server = uvicorn_server(app)
    with listening_socket(host, port) as sock:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        try:
            yield TeacherServer(host=host, port=sock.getsockname()[1], model=model)
        finally:
            server.should_exit = True
            thread.join(timeout=10)


@contextmanager
def running_teacher(
    *, mistake_rate: float = 0.0, seed: int = 0, host: str = "127.0.0.1", port: int = 0, model: str = MODEL
) -> Iterator[TeacherServer]:
    """Serve the teacher in a process of its own for the length of the block.

    The process also ends when this one dies, however it dies: it watches the pipe that is its standard input.
    Raises ``RunFailed`` when it does not come up, ``ConfigError`` when its packages are not installed.
    """
    require("gateway")
    with listening_socket(host, port) as sock:
        settings = {"fd": sock.fileno(), "mistake_rate": mistake_rate, "seed": seed, "model": model}
        process = subprocess.Popen(
            [sys.executable, "-m", "firstchair.rollout.desk.server", json.dumps(settings)],
            stdin=subprocess.PIPE,
            pass_fds=[sock.fileno()],
            # Ctrl-C in a terminal goes to the whole group; this one stops when its input ends.
            start_new_session=True,
        )
        server = TeacherServer(host=host, port=sock.getsockname()[1], model=model, pid=process.pid)
    try:
        _wait_until_healthy(server, process)
        yield server
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_healthy(server: TeacherServer, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RunFailed(f"the teacher's server ended with exit code {process.returncode} before it answered")
        try:
            with urllib.request.urlopen(f"{server.base_url}/healthz", timeout=2):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.05)
    process.kill()
    raise RunFailed(f"the teacher's server did not answer on {server.base_url} within {START_S:g} s")


def _child(settings: str) -> None:
    """The serving process: the socket is inherited, and end of standard input means stop."""
    options = json.loads(settings)
    sock = socket.socket(fileno=options.pop("fd"))
    server = uvicorn_server(teacher_app(**options))

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        server.should_exit = True

    threading.Thread(target=watch, daemon=True).start()
    server.run(sockets=[sock])


if __name__ == "__main__":
    _child(sys.argv[1])
