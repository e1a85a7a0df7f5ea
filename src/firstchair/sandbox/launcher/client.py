"""This process's side of the launcher."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import firstchair
from firstchair.core.concurrency import to_the_end
from firstchair.core.errors import ConfigError
from firstchair.sandbox.launcher.job import Job, Outcome, read_outcome, write_job

_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from firstchair.sandbox.launcher.server import serve; "
    "serve(int(sys.argv[2]))"
)


class Launcher:
    """Runs jobs in processes forked from a small one of its own, which starts at the first job and ends with this
    object, or with this process however it dies. Raises ``ConfigError`` where there is no Linux.
    """

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise ConfigError("sandbox: needs Linux, for containers too; run it in a virtual machine or a container")
        self._lock = threading.Lock()
        self._control: socket.socket | None = None

    async def run(self, job: Job, stdin: bytes = b"") -> Outcome:
        """What came of the job. When this returns, raises or is cancelled, no process of it lives any more.

        Raises ``SetupFailed`` when it could not be started.
        """
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                # To the end: a descriptor that is closed meanwhile could be another one's when it is sent.
                await to_the_end(asyncio.to_thread(self._hand_over, theirs))
            ours.setblocking(False)
            try:
                await _send(ours, write_job(job, stdin))
                return read_outcome(await _receive(ours))
            except asyncio.CancelledError:
                # The keeper ends the run when it sees the socket closed, and closes its own end when all are dead.
                ours.shutdown(socket.SHUT_WR)
                await to_the_end(_receive(ours))
                raise

    def _hand_over(self, theirs: socket.socket) -> None:
        with self._lock:
            try:
                self._send_descriptor(theirs)
            except OSError:  # the server was killed from outside
                self._control = None
                self._send_descriptor(theirs)

    def _send_descriptor(self, theirs: socket.socket) -> None:
        if self._control is None:
            self._control = self._start()
        socket.send_fds(self._control, [b"1"], [theirs.fileno()])

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        root = Path(firstchair.__file__).parents[1]
        command = [sys.executable, "-I", "-S", "-c", _START, str(root), str(theirs.fileno())]
        with theirs:
            # Its own session: a Ctrl-C at the terminal is for this process, which ends its runs in order.
            process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                env={"PATH": os.defpath},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        weakref.finalize(self, _stop, ours, process)
        return ours


def _stop(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    control.close()
    process.wait()


async def _send(ours: socket.socket, message: bytes) -> None:
    try:
        await asyncio.get_running_loop().sock_sendall(ours, message)
    except (BrokenPipeError, ConnectionResetError):
        return  # the answer, or its absence, says why


async def _receive(ours: socket.socket) -> bytes:
    blocks = []
    loop = asyncio.get_running_loop()
    try:
        while block := await loop.sock_recv(ours, 1 << 18):
            blocks.append(block)
    except ConnectionResetError:
        return b""
    return b"".join(blocks)
