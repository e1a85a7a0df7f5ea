"""The small process that runs are forked from. It reads nothing but sockets that are handed to it."""

from __future__ import annotations

import gc
import os
import signal
import socket
from contextlib import suppress

from firstchair.sandbox.launcher.keeper import keep
from firstchair.sandbox.launcher.users import is_root, spare_namespace


def serve(control: int) -> None:
    """Fork a keeper for each socket that comes over the socket ``control``; when its other end is closed, return as
    soon as all of them have ended.
    """
    owner = None
    if is_root():
        with suppress(OSError):  # the run that needs it says why
            owner = spare_namespace()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o022)  # whatever ours is, a command must get through the tree that is built for it
    # Forks share memory with this process until one of them writes to it, which a collection does.
    gc.disable()
    gc.freeze()
    with socket.socket(fileno=control) as requests:
        signal.signal(signal.SIGCHLD, lambda *_: _reap())
        while True:
            _, descriptors, _, _ = socket.recv_fds(requests, 1, 1)
            if not descriptors:
                break
            _fork_keeper(descriptors[0], requests, owner)
            os.close(descriptors[0])
    with suppress(ChildProcessError):
        while True:
            os.wait()


def _reap() -> None:
    """Wait for the keepers that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _fork_keeper(descriptor: int, requests: socket.socket, owner: int | None) -> None:
    try:
        if os.fork():
            return
    except OSError:
        return  # its caller sees the socket closed
    try:
        requests.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        keep(socket.socket(fileno=descriptor), owner)
    except BaseException:  # noqa: BLE001 - the main function of this process: its caller sees the socket closed
        import traceback  # here: what it brings along would make every fork slower

        traceback.print_exc()
    finally:
        os._exit(0)
