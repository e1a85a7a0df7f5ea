"""This process's side of the launcher."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path

import firstchair
from firstchair.core.concurrency import to_the_end
from firstchair.core.errors import ConfigError
from firstchair.sandbox.launcher.job import Job, Outcome, SetupFailed, is_whole, read_outcome, write_job

_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from firstchair.sandbox.launcher.server import serve; "
    "serve(int(sys.argv[2]))"
)


_STOP_S = 10.0
_IDLE_KEEPERS = 8
"""Kept for further runs: each holds a few MB."""


class Launcher:
    """Runs jobs in processes forked from a small one of its own, which starts at the first job and ends with this
    object, or with this process however it dies. Raises ``ConfigError`` where there is no Linux.
    """

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise ConfigError("sandbox: needs Linux, for containers too; run it in a virtual machine or a container")
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._idle: list[socket.socket] = []
        self._pid = os.getpid()

    async def run(self, job: Job, stdin: bytes = b"") -> Outcome:
        """What came of the job. When this returns, raises or is cancelled, no process of it lives any more.

        Raises ``SetupFailed`` when it could not be started.
        """
        channel = await self._keeper()
        try:
            await _send(channel, write_job(job, stdin))
            answer = await _receive(channel)
        except asyncio.CancelledError:
            # The keeper ends the run when it sees the socket closed, and closes its own end when all are dead.
            with channel:
                channel.shutdown(socket.SHUT_WR)
                await to_the_end(_to_its_end(channel))
            raise
        except BaseException:
            channel.close()
            raise
        if not is_whole(answer):
            channel.close()
            raise SetupFailed("the launcher gave no answer")
        if len(self._idle) < _IDLE_KEEPERS:
            self._idle.append(channel)
        else:
            channel.close()
        return read_outcome(answer)

    async def _keeper(self) -> socket.socket:
        """The socket of a keeper that has nothing to do, a new one where there is none."""
        if os.getpid() != self._pid:  # forked: those of our parent are not ours to talk to
            self._idle, self._control, self._pid = [], None, os.getpid()
        while self._idle:
            channel = self._idle.pop()
            if _is_alive(channel):
                return channel
            channel.close()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                # To the end: a descriptor that is closed meanwhile could be another one's when it is sent.
                await to_the_end(asyncio.to_thread(self._hand_over, theirs))
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        return ours

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
        weakref.finalize(self, _stop, os.getpid(), process, self._idle, ours)
        return ours


def _stop(owner: int, process: subprocess.Popen[bytes], idle: list[socket.socket], control: socket.socket) -> None:
    """End the keepers and the server; in a fork of the process that started them, only forget them."""
    for end in (*idle, control):
        if os.getpid() == owner:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # a fork may hold a copy, which to close alone would leave open
        end.close()
    if os.getpid() != owner:
        return
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def _send(channel: socket.socket, message: bytes) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # the answer, or its absence, says why
        await asyncio.get_running_loop().sock_sendall(channel, message)


async def _receive(channel: socket.socket) -> bytes:
    """An answer; less when the keeper has died."""
    message = bytearray()
    loop = asyncio.get_running_loop()
    with suppress(ConnectionResetError):
        while not is_whole(message) and (block := await loop.sock_recv(channel, 1 << 18)):
            message += block
    return bytes(message)


async def _to_its_end(channel: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with suppress(ConnectionResetError):
        while await loop.sock_recv(channel, 1 << 18):
            pass


def _is_alive(channel: socket.socket) -> bool:
    """Whether the other end is open, of a socket over which nothing is to come."""
    try:
        return bool(channel.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
