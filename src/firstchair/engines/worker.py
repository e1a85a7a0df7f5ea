"""The thread that owns the model: it prepares jobs, drives the runner, and does other work between batches."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from firstchair.engines.base import ErrorKind
from firstchair.engines.jobs import Job
from firstchair.engines.openmp import release_pool
from firstchair.engines.runner import Runner

CLOSED = f"{ErrorKind.ENGINE}: the engine is closed"


class Worker:
    """Takes commands in order. Work passed to ``call`` waits until no job is in flight, later jobs wait for it."""

    def __init__(self, runner: Callable[[], Runner], prepare: Callable[[Sequence[Job]], list[Job]]):
        self._runner, self._prepare = runner, prepare
        self._inbox: queue.SimpleQueue[list[Job] | tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._lock = threading.Lock()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue jobs; each is delivered exactly once."""
        if not self._send(list(jobs)):
            for job in jobs:
                job.refuse(ErrorKind.ENGINE, CLOSED)

    def call(self, work: Callable[[], Any]) -> Future[Any]:
        """Run ``work`` in the thread while nothing is in flight."""
        future: Future[Any] = Future()
        if not self._send((work, future)):
            future.set_exception(RuntimeError(CLOSED))
        return future

    def _send(self, command: list[Job] | tuple[Callable[[], Any], Future[Any]]) -> bool:
        with self._lock:
            if self._closed:
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="firstchair-engine", daemon=True)
                self._thread.start()
            self._inbox.put(command)
            return True

    def close(self) -> None:
        """Stop after the present step; what is in flight or queued is refused."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._inbox.put(None)
            thread.join()

    def _work(self) -> None:
        with torch.inference_mode():
            while self._take_commands():
                runner = self._runner()
                if runner.busy:
                    self._step(runner)
                elif self._calls:
                    _run(*self._calls.popleft())
        for job in self._runner().jobs():
            job.refuse(ErrorKind.ENGINE, CLOSED)
        self._runner().abandon()
        self._refuse_queued()

    def _take_commands(self) -> bool:
        """Move commands from the inbox to the runner; waits when there is nothing to do. False: close."""
        while not self._calls:
            try:
                idle = not self._runner().busy
                if idle and self._inbox.empty():
                    release_pool()
                command = self._inbox.get(block=idle)
            except queue.Empty:
                return True
            if command is None:
                return False
            if isinstance(command, tuple):
                self._calls.append(command)
            else:
                self._submit(command)
        return not self._closed

    def _submit(self, jobs: list[Job]) -> None:
        try:
            ready = self._prepare(jobs)
        except Exception as error:  # noqa: BLE001 - the thread's boundary: the callers learn of it, the thread goes on
            for job in jobs:
                job.refuse(ErrorKind.ENGINE, _reason(error))
        else:
            self._runner().submit(ready)

    @staticmethod
    def _step(runner: Runner) -> None:
        try:
            runner.step()
        except Exception as error:  # noqa: BLE001 - as above; what is stored may be half-written, so it is dropped
            for job in runner.jobs():
                job.refuse(ErrorKind.ENGINE, _reason(error))
            runner.abandon()

    def _refuse_queued(self) -> None:
        for _, future in self._calls:
            future.set_exception(RuntimeError(CLOSED))
        while not self._inbox.empty():
            command = self._inbox.get()
            if isinstance(command, tuple):
                command[1].set_exception(RuntimeError(CLOSED))
            elif command is not None:
                for job in command:
                    job.refuse(ErrorKind.ENGINE, CLOSED)


def _run(work: Callable[[], Any], future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - carried to the caller, who awaits it
        future.set_exception(error)


def _reason(error: Exception) -> str:
    return f"{ErrorKind.ENGINE}: {type(error).__name__}: {error}"
