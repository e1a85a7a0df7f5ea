"""The processes of ``firstchair gateway serve``.

    parent ── binds the port, starts and restarts the others, passes signals on
      ├── worker 0 … N-1    accept from the one socket, answer calls, append to their spools
      ├── admin             console and API on the admin port
      └── sink              spools → ledger and traces

SIGHUP: the file is read again, see ``reload.py``.
SIGTERM: the workers finish what is under way (``drain_s`` at most), then the sink reads the spools to their end, then
the parent exits. When the parent dies, its children see the pipe close and do the same. Children are forked before
any thread or event loop exists here, so a start costs one import.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from firstchair.core.errors import ConfigError, FirstchairError
from firstchair.core.extras import require
from firstchair.gateway.config import GatewayConfig, Listen, check_providers
from firstchair.gateway.console.process import admin_main
from firstchair.gateway.json_log import JsonLines, frames_of, log
from firstchair.gateway.reload import (
    PREPARE_S,
    USE_S,
    Control,
    Line,
    Reloaded,
    ask_all,
    heed,
    plan,
    refusal,
)

if TYPE_CHECKING:
    from firstchair.gateway.control.store import ControlStore
    from firstchair.gateway.sink import SinkConfig

BACKLOG = 2048
COLLECT_AFTER = 20_000
"""Objects more than before, until the collector looks for cycles among the new ones; Python's own number is 700."""
SINK_STOP_S = 60.0
"""How long the sink may take to read what is left; a spool that waits is read after the next start."""
SINK_NICENESS = 10
"""Added to the sink's priority number: where cores are short, calls come first and the spool waits."""
GONE_EVERY_S = 30.0
_MARGIN_S = 5.0
_SHORT_LIFE_S = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP)

Main = Callable[[GatewayConfig, int, socket.socket], None]
"""What a child does: with the configuration in force, a pipe that ends with its parent, its end of the line."""


@dataclass
class _Child:
    """One process and how to start it again."""

    name: str
    run: Main
    pid: int = 0
    line: Line | None = None
    started: float = 0.0
    not_before: float = 0.0
    pause_s: float = field(default=0.25)

    @property
    def is_sink(self) -> bool:
        return self.name == "sink"


def serve(load: Callable[[], GatewayConfig]) -> int:
    """Run the gateway until it is told to stop; the exit code. Raises ``ConfigError`` before anything is started.

    ``load`` reads the configuration: now, and again at every reload.
    """
    require("gateway")
    os.umask(0o077)  # what is written here holds what people wrote: for the gateway's user alone
    config = load()
    logging.basicConfig(level=logging.WARNING, handlers=[JsonLines()], force=True)
    if not hasattr(os, "fork"):
        raise ConfigError("gateway serve: this system cannot fork processes; run it on Linux or macOS")
    _prepare(config)
    listener = _bind(config.listen)
    admin = _bind(Listen(host=config.listen.admin_host, port=config.listen.admin_port, admin_port=0))
    host, port = listener.getsockname()[:2]
    prefix = f"{socket.gethostname().partition('.')[0]}-{port}"[:40]
    names = [_safe(f"{prefix}-w{number}") for number in range(config.workers)]
    children = [_Child(name, _worker_main(name, listener)) for name in names]
    children.insert(0, _Child("sink", _sink_main))
    children.append(_Child("admin", admin_main(admin, listener)))
    parent = _Parent(config, listener, children, load, _control(config))
    parent.heed_signals()
    log("listening", host=host, port=port, admin_port=admin.getsockname()[1], workers=config.workers)
    return parent.run()


def _prepare(config: GatewayConfig) -> None:
    """What can be wrong is found here, with the terminal still looking; what workers need is imported once, here."""
    import firstchair.gateway.app
    import firstchair.gateway.http_server  # noqa: F401  # the sink imports its own, while the workers answer already
    from firstchair.gateway.control.store import ControlStore
    from firstchair.gateway.telemetry import check_environment

    _check_files(config)
    check_environment(os.environ)
    with ControlStore.open(config.database, providers=config.providers) as store:
        store.forget_gone_workers()
        if not store.snapshot().slots:
            for slot in config.slots:
                store.put_slot(slot, who="gateway.yaml", why="first start")
        _tell_unapplied(config, store)


def _check_files(config: GatewayConfig) -> None:
    """Read what the file names, but for the redaction hook, which is no code for this process."""
    from firstchair.catalog.prices import PriceTable
    from firstchair.gateway.context import PromptCounter
    from firstchair.gateway.redaction import Redactor

    for name, provider in config.providers.items():
        provider.secret(name)
        if provider.tokenizer is not None:
            PromptCounter(provider.tokenizer)
    PriceTable.load(config.prices)
    Redactor(patterns=config.recording.patterns)


def _tell_unapplied(config: GatewayConfig, store: ControlStore) -> list[str]:
    """Name the slots of the file that were edited there: the database decides since the first start."""
    known = {version.slot for version in store.slots()}
    slots = [
        slot.slot
        for slot in config.slots
        # Any version counts: what was promoted since stands in no file.
        if slot.slot not in known or all(slot != version.config for version in store.history(slot.slot))
    ]
    if slots:
        text = (
            "these slots of the file are not in force: the database decides since the first start; "
            "firstchair gateway slots set FILE --dry-run shows what it would change; without --dry-run it does so"
        )
        log("slots_not_applied", slots=slots, text=text)
    return slots


def _bind(listen: Listen) -> socket.socket:
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((listen.host, listen.port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(
            f"listen: cannot bind {listen.host}:{listen.port}: {reason}; choose another host or port"
        ) from None
    listener.set_inheritable(True)
    return listener


def _safe(name: str) -> str:
    """``name`` as spools take it."""
    return "".join(char if char.isascii() and (char.isalnum() or char in "-_") else "-" for char in name)


class _Parent:
    """Starts children, restarts those that die, has them reload, and stops them in order."""

    def __init__(
        self,
        config: GatewayConfig,
        listener: socket.socket,
        children: list[_Child],
        load: Callable[[], GatewayConfig],
        control: Control | None,
    ):
        self._config, self._listener, self._children = config, listener, children
        self._load, self._control = load, control
        self._life_read, self._life_write = os.pipe()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._stops = 0
        self._hangups = 0

    def heed_signals(self) -> None:
        """From here on a stop is an orderly one."""
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop_asked)
        signal.signal(signal.SIGHUP, self._reload_asked)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> int:
        while not self._stops:
            self._start_missing()
            self._wait(self._next_start())
            self._reap(expected=False)
            self._reload_if_asked()
        return self._stop()

    def _stop_asked(self, *_: object) -> None:
        self._stops += 1

    def _reload_asked(self, *_: object) -> None:
        self._hangups += 1

    def _reload_if_asked(self) -> None:
        if self._hangups:
            self._hangups = 0
            self._reload("SIGHUP", "")
        if self._control is not None and select.select([self._control], [], [], 0)[0]:
            asked = self._control.asked()
            if asked is not None:
                asked.answer(self._reload(asked.who, asked.why))

    def _reload(self, who: str, why: str) -> Reloaded | str:
        """Read the file again and go by it; what was done, or why nothing was."""
        try:
            done = self._reloaded(who, why)
        except FirstchairError as error:
            log("reload_refused", who=who, error=str(error))
            return f"not reloaded, the gateway runs on as it did: {error}"
        log("reloaded", who=who, **msgspec.structs.asdict(done))
        return done

    def _reloaded(self, who: str, why: str) -> Reloaded:
        from firstchair.gateway.control.store import ControlStore

        made = plan(self._config, self._load())
        _check_files(made.config)
        with ControlStore.open(self._config.database, must_exist=True) as store:
            _check_slots_in_force(made.config, store)
            try:
                wrong = self._ask({"step": "prepare", "config": made.config.model_dump_json()}, PREPARE_S)
                if wrong:
                    raise ConfigError(refusal(wrong))
                details = {"changed": made.changed, "needs_restart": made.needs_restart}
                store.audit(who, "config.reload", socket.gethostname(), why, details)
            except FirstchairError:
                self._ask({"step": "drop"}, USE_S)
                raise
            self._config = made.config
            behind = self._ask({"step": "use"}, USE_S)
            return Reloaded(
                changed=made.changed,
                needs_restart=made.needs_restart,
                slots_not_applied=tuple(_tell_unapplied(made.config, store)),
                behind=tuple(behind),
            )

    def _ask(self, message: dict[str, Any], timeout_s: float) -> dict[str, str]:
        lines = {child.name: child.line for child in self._children if child.line is not None and not child.is_sink}
        return ask_all(lines, message, timeout_s, give_up=lambda: self._stops > 0)

    def _start_missing(self) -> None:
        now = time.monotonic()
        for child in self._children:
            if not child.pid and now >= child.not_before:
                child.started = now
                child.pid = self._fork(child)

    def _fork(self, child: _Child) -> int:
        sys.stderr.flush()
        child.line = line = Line()
        # A stop that reaches the child while it still has the parent's handlers would be lost.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        pid = os.fork()
        if pid:
            line.child_end.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return pid
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            # Ctrl-C reaches the whole group; the parent alone decides about the order.
            for number in (signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            for fd in (self._life_write, self._wake_read, self._wake_write):
                os.close(fd)
            if self._control is not None:
                self._control.forget()
            for other in self._children:
                if other.line is not None:
                    other.line.close()
            if child.is_sink:
                self._listener.close()
            child.run(self._config, self._life_read, line.child_end)
            code = 0
        except FirstchairError as error:
            log("failed", process=child.name, error=str(error))
        except BaseException as error:  # noqa: BLE001 - a process's main function: recorded, exit code 1
            log("crashed", process=child.name, error=type(error).__name__, frames=frames_of(error.__traceback__))
        finally:
            os._exit(code)

    def _next_start(self) -> float | None:
        """Seconds until a child may be started again; ``None``: nobody waits."""
        now = time.monotonic()
        waits = [max(0.0, child.not_before - now) for child in self._children if not child.pid]
        return min(waits, default=None)

    def _wait(self, timeout_s: float | None) -> None:
        """Until a signal arrives, or somebody asks for a reload."""
        waiting: list[Any] = [self._wake_read, *([self._control] if self._control is not None else [])]
        ready, _, _ = select.select(waiting, [], [], timeout_s)
        if self._wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)

    def _reap(self, *, expected: bool) -> None:
        now = time.monotonic()
        for child in self._children:
            if not child.pid:
                continue
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if not pid:
                continue
            child.pid = 0
            if child.line is not None:
                child.line.close()
                child.line = None
            if expected:
                continue
            short = now - child.started < _SHORT_LIFE_S
            child.pause_s = min(child.pause_s * 2, 8.0) if short else 0.25
            child.not_before = now + (child.pause_s if short else 0.0)
            log("restarting", process=child.name, exit=os.waitstatus_to_exitcode(status), in_s=child.pause_s)

    def _stop(self) -> int:
        log("stopping", drain_s=self._config.drain_s)
        self._listener.close()
        if self._control is not None:
            self._control.close()
            self._control = None
        workers = [child for child in self._children if not child.is_sink]
        drained = self._end(workers, self._config.drain_s + _MARGIN_S)
        emptied = self._end([child for child in self._children if child.is_sink], SINK_STOP_S)
        log("stopped", calls_cut=not drained, spool_left=not emptied)
        return 0 if drained and emptied else 1

    def _end(self, children: list[_Child], timeout_s: float) -> bool:
        """SIGTERM and wait; SIGKILL for those that take too long, or at the third signal. Whether none was killed."""
        for child in children:
            if child.pid:
                os.kill(child.pid, signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while any(child.pid for child in children):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._stops > 2:
                for child in children:
                    if child.pid:
                        os.kill(child.pid, signal.SIGKILL)
                        os.waitpid(child.pid, 0)
                        child.pid = 0
                return False
            self._wait(min(left_s, 0.5))
            self._reap(expected=True)
        return True


def _control(config: GatewayConfig) -> Control | None:
    """``None`` where there can be none: SIGHUP reloads too."""
    try:
        return Control(config.spool)
    except OSError as error:
        log("no_control_socket", error=str(error), text="firstchair gateway reload cannot reach this gateway")
        return None


def _check_slots_in_force(config: GatewayConfig, store: ControlStore) -> None:
    """Raises ``ConfigError`` when a slot is served by a provider that ``config`` has not."""
    for version in store.slots():
        try:
            assert version.config is not None
            check_providers(version.config, config.providers)
        except ValueError as error:
            raise ConfigError(f"{error}; leave the provider in the file until no slot names it") from None


def _worker_main(name: str, listener: socket.socket) -> Main:
    def run(config: GatewayConfig, parent_fd: int, line: socket.socket) -> None:
        import asyncio

        from firstchair.gateway.app import GatewayApp
        from firstchair.gateway.control.store import ControlStore
        from firstchair.gateway.http_server import run_server
        from firstchair.gateway.worker import Worker

        with ControlStore.open(config.database, providers=config.providers) as store:
            try:
                store.end_worker(name)  # an earlier life that was killed
            except FirstchairError as error:
                # Calls go on while the database takes nothing. What that life had set aside stays so until this ends.
                log("database_not_written", process=name, error=str(error))
            worker = Worker(config, name, store)

            def draining() -> None:
                worker.draining = True

            async def main() -> None:
                tasks: list[asyncio.Task[None]] = []
                worker.ready = lambda: tasks.append(asyncio.create_task(heed(line, worker)))
                await run_server(
                    GatewayApp(worker), listener, drain_s=config.drain_s, parent_fd=parent_fd, on_stop=draining
                )
                for task in tasks:
                    task.cancel()

            _spare_the_collector()
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(main())

    return run


def _spare_the_collector() -> None:
    """What was imported stays, and of what a call makes nearly all goes without the collector: let it look seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 20)


def _loop_factory() -> Callable[[], Any] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _watch_canaries(config: GatewayConfig, stop: threading.Event) -> None:
    """Beside the sink: it has no calls to delay, and the ledger grows here."""
    from firstchair.gateway.canary import CanaryWatch
    from firstchair.gateway.control.store import ControlStore

    while not stop.is_set():
        try:
            # Without the names of providers: they may change, and what is brought back here was in force before.
            with ControlStore.open(config.database) as store:
                CanaryWatch(store).run(stop)
        except FirstchairError as error:
            log("canary_watch", error=str(error))
            stop.wait(5.0)


def _outlive_nobody(parent_fd: int, stop: threading.Event) -> None:
    """Set ``stop`` when the parent has ended. Nothing is ever written to the pipe: it becomes readable by that alone.

    Reading without a look first would fail: the workers' event loops make the pipe, which all share, non-blocking.
    """
    select.select([parent_fd], [], [])
    stop.set()


def _sink_main(config: GatewayConfig, parent_fd: int, _line: socket.socket) -> None:
    from firstchair.gateway.sink import Sink

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    os.nice(SINK_NICENESS)

    threading.Thread(target=_outlive_nobody, args=(parent_fd, stop), name="parent", daemon=True).start()
    threading.Thread(target=_watch_canaries, args=(config, stop), name="canary", daemon=True).start()
    threading.Thread(target=_forget_the_gone, args=(config, stop), name="gone", daemon=True).start()
    with Sink(sink_settings(config)) as sink:
        sink.run(stop)
        if not sink.drain(SINK_STOP_S - _MARGIN_S):
            log("spool_left", hint="the database did not take everything; the next start reads on")


def sink_settings(config: GatewayConfig) -> SinkConfig:
    """What the sink of this gateway works on."""
    from firstchair.gateway.sink import SinkConfig

    recording = config.recording
    return SinkConfig(
        spool=config.spool,
        database=config.database,
        store=recording.store,
        blobs=config.blob_folder,
        idle_s=recording.idle_s,
        max_unsaved_s=recording.max_unsaved_s,
        max_branches=recording.max_branches,
        keep_s=None if recording.keep_days is None else recording.keep_days * 86_400,
    )


def _forget_the_gone(config: GatewayConfig, stop: threading.Event) -> None:
    """What workers that are gone, here or elsewhere, had set aside of budgets counts as spent."""
    from firstchair.gateway.control.store import ControlStore

    while not stop.wait(GONE_EVERY_S):
        # The database may be away; the next round is soon.
        with contextlib.suppress(FirstchairError), ControlStore.open(config.database, must_exist=True) as store:
            store.forget_gone_workers()
