"""A reload: a running gateway reads its file again.

    SIGHUP ──────────────────────────────────┐
    command, admin API ──→ spool/control.sock ──→ parent: read, check, compare with what runs
                                             │ prepare ──→ workers, admin process: make it all, change nothing
                                             │       ←── ready, or what is wrong ──→ drop: nothing has changed
                                             │ audit log
                                             └ use ──→ …  ←── done, and only then the answer

Between parent and child goes one JSON object a line, and one line back for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import select
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import orjson
from pydantic import BaseModel

from firstchair.core.atomic import make_dirs
from firstchair.core.errors import ConfigError
from firstchair.gateway.config import GatewayConfig

PREPARE_S = 30.0
"""How long a process may take to prepare; it may import a redaction hook."""
USE_S = 5.0
ANSWER_S = PREPARE_S + USE_S + 30.0
"""How long a command waits; the parent asks the database too."""
REQUEST_S = 1.0
"""How long a command may take to say what it wants, while the parent waits."""
SOCKET = "control.sock"
_MAX_REQUEST = 16_384
_MAX_LINE = 1 << 24
_numbers = itertools.count(1)

# --- what may change --------------------------------------------------------------------------------------------

_SECTIONS = ("prices", "providers", "limits", "breaker", "shadow")
_OF_RECORDING = ("on", "redact", "redact_hook", "patterns")


class Plan(NamedTuple):
    """What a file that was read again leads to."""

    config: GatewayConfig
    """As it is to be in force: what runs, with that of the file which can change while it runs."""
    changed: tuple[str, ...]
    """Fields that change, by dotted name."""
    needs_restart: tuple[str, ...]
    """Fields of the file that differ and stay as they are until the next start."""


def plan(running: GatewayConfig, read: GatewayConfig) -> Plan:
    """Compare the configuration in force with the file as it was read again."""
    recording = running.recording.model_copy(update={name: getattr(read.recording, name) for name in _OF_RECORDING})
    update = {name: getattr(read, name) for name in (*_SECTIONS, "slots")}
    config = running.model_copy(update={**update, "recording": recording})
    return Plan(config, _differences(running, config), _differences(config, read))


def _differences(before: GatewayConfig, after: GatewayConfig) -> tuple[str, ...]:
    """Fields that differ, but for slots, which the database decides. A provider is one field."""
    found: list[str] = []
    for name in GatewayConfig.model_fields:
        old, new = getattr(before, name), getattr(after, name)
        if name == "slots" or old == new:
            continue
        if name == "providers":
            found += [f"{name}.{one}" for one in sorted({*old, *new}) if old.get(one) != new.get(one)]
        elif isinstance(old, BaseModel):
            fields = type(old).model_fields
            found += [f"{name}.{field}" for field in fields if getattr(old, field) != getattr(new, field)]
        else:
            found.append(name)
    return tuple(found)


class Reloaded(msgspec.Struct, frozen=True, kw_only=True):
    """What a reload did. Files of keys and prices were read anew, whether the file names others or not."""

    changed: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    """Fields that differ in the file and cannot change while the gateway runs."""
    slots_not_applied: tuple[str, ...] = ()
    """Slots of the file that differ from the database, which decides."""
    behind: tuple[str, ...] = ()
    """Processes that did not say in time that they serve by it."""


# --- between parent and child -----------------------------------------------------------------------------------


class Line:
    """Both ends of a parent's line to one child; each of the two keeps its own."""

    def __init__(self) -> None:
        self._own, self.child_end = socket.socketpair()
        self._heard = b""

    def fileno(self) -> int:
        return self._own.fileno()

    def close(self) -> None:
        """Let go of the parent's end."""
        self._own.close()

    def send(self, data: bytes) -> None:
        self._own.settimeout(USE_S)
        self._own.sendall(data)

    def answers(self) -> list[dict[str, Any]] | None:
        """What has come, to be called when something has; ``None``: the child is gone."""
        try:
            data = self._own.recv(65_536)
        except ConnectionError:
            data = b""
        if not data:
            return None
        *lines, self._heard = (self._heard + data).split(b"\n")
        return [orjson.loads(line) for line in lines]


def ask_all(
    lines: Mapping[str, Line], message: Mapping[str, Any], timeout_s: float, *, give_up: Callable[[], bool]
) -> dict[str, str]:
    """Ask every child, and wait for all; what is wrong, by child.

    A child that is gone is left out: the one in its place begins by the configuration in force.
    """
    number = next(_numbers)
    data = orjson.dumps({**message, "number": number}) + b"\n"
    wrong: dict[str, str] = {}
    waiting: dict[Line, str] = {}
    for name, line in lines.items():
        try:
            line.send(data)
            waiting[line] = name
        except ConnectionError:
            continue
        except OSError:
            wrong[name] = "does not listen"
    deadline = time.monotonic() + timeout_s
    while waiting and time.monotonic() < deadline and not give_up():
        ready, _, _ = select.select(list(waiting), [], [], min(0.5, max(0.0, deadline - time.monotonic())))
        for line in ready:
            answers = line.answers()
            answer = None if answers is None else next((one for one in answers if one["number"] == number), None)
            if answer is not None and "error" in answer:
                wrong[waiting[line]] = answer["error"]
            if answers is None or answer is not None:
                del waiting[line]
    return wrong | dict.fromkeys(waiting.values(), "did not answer in time")


class Reloadable(Protocol):
    """A child's part that a reload changes."""

    async def prepare(self, config: GatewayConfig) -> None:
        """Make all that is needed; nothing changes yet."""

    def use(self) -> None:
        """Go by what was prepared, from here on. Cannot fail."""

    async def drop(self) -> None:
        """Forget what was prepared."""


async def heed(end: socket.socket, part: Reloadable) -> None:
    """Do what the parent asks for, until the line ends."""
    end.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=end, limit=_MAX_LINE)
    with contextlib.suppress(ConnectionError):
        while line := await reader.readline():
            message = orjson.loads(line)
            answer = {"number": message["number"]}
            try:
                await _obey(part, message)
            except Exception as error:  # noqa: BLE001 - a hook's import may raise anything: told, and nothing changes
                known = isinstance(error, ConfigError)
                answer["error"] = str(error) if known else f"{type(error).__name__}: {error}"
            writer.write(orjson.dumps(answer) + b"\n")
            await writer.drain()
    writer.close()


async def _obey(part: Reloadable, message: Mapping[str, Any]) -> None:
    if message["step"] == "prepare":
        await part.prepare(GatewayConfig.model_validate_json(message["config"]))
    elif message["step"] == "use":
        part.use()
    else:
        await part.drop()


# --- between command and parent ---------------------------------------------------------------------------------


class Asked(NamedTuple):
    """A reload that somebody waits for."""

    connection: socket.socket
    who: str
    why: str

    def answer(self, answer: Reloaded | str) -> None:
        """What it did, or why it did nothing. Whoever asked may be gone."""
        said = {"error": answer} if isinstance(answer, str) else {"done": answer}
        with self.connection, contextlib.suppress(OSError):
            self.connection.sendall(msgspec.json.encode(said))


class Control:
    """Where commands reach the gateway that runs on a spool. Only its own user gets in."""

    def __init__(self, spool: Path):
        """Raises ``OSError``: another gateway listens there, or the path is too long for a socket."""
        make_dirs(spool)
        self._path = spool / SOCKET
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _remove_stale(self._path)
            before = os.umask(0o177)
            try:
                self._listener.bind(str(self._path))
            finally:
                os.umask(before)
            self._listener.listen(8)
        except OSError:
            self._listener.close()
            raise

    def fileno(self) -> int:
        return self._listener.fileno()

    def asked(self) -> Asked | None:
        """The next one who asks; ``None`` when it went away or did not say what for. To be called when one waits."""
        connection, _ = self._listener.accept()
        connection.settimeout(REQUEST_S)
        try:
            request = orjson.loads(connection.recv(_MAX_REQUEST))
            return Asked(connection, str(request["who"]), str(request["why"]))
        except (OSError, ValueError, KeyError, TypeError):
            connection.close()
            return None

    def forget(self) -> None:
        """In a child: the socket is the parent's."""
        self._listener.close()

    def close(self) -> None:
        self._listener.close()
        self._path.unlink(missing_ok=True)


def _remove_stale(path: Path) -> None:
    """Take away what a killed gateway left. Raises ``OSError`` when one answers there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except FileNotFoundError:
            return
    raise OSError("another gateway runs on this spool")


def ask_reload(spool: Path, *, who: str, why: str = "") -> Reloaded:
    """Have the gateway that runs on ``spool`` read its file again; when this returns, all of it serves by that.

    Raises ``ConfigError`` with the reason when nothing was changed.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_S)
        try:
            connection.connect(str(spool / SOCKET))
            connection.sendall(orjson.dumps({"who": who, "why": why}))
            data = b"".join(iter(lambda: connection.recv(65_536), b""))
        except (FileNotFoundError, ConnectionRefusedError):
            raise ConfigError(
                f"reload: no gateway runs on the spool {spool}; start it, or name the file it was started with"
            ) from None
        except OSError as error:
            raise ConfigError(f"reload: {spool / SOCKET}: {error}; see the log of the gateway") from None
    if not data:
        raise ConfigError("reload: the gateway ended meanwhile; see its log")
    said = orjson.loads(data)
    if "error" in said:
        raise ConfigError(said["error"])
    return msgspec.convert(said["done"], Reloaded)


def refusal(wrong: Mapping[str, str]) -> str:
    """Why nothing was changed, said once where several say the same."""
    by_text: dict[str, list[str]] = {}
    for name, text in wrong.items():
        by_text.setdefault(text, []).append(name)
    return "; ".join(f"{text} ({', '.join(names)})" for text, names in by_text.items())


def changeable_fields() -> Iterable[str]:
    """What a reload changes, by dotted name; for the page of the configuration."""
    yield from (name for name in _SECTIONS)
    yield from (f"recording.{name}" for name in _OF_RECORDING)
