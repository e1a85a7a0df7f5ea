"""What crosses the socket between a caller and the keeper of its run: a job there, an outcome back."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

EXITED, TIMEOUT, MEMORY, DISK = "exited", "timeout", "memory", "disk"
"""How a run ends: the values of ``SandboxEnd``, which this process does not import."""

_SIZE = struct.Struct(">I")


@dataclass(frozen=True)
class Caps:
    """What a command and its children may use up."""

    cpu_s: float
    memory_bytes: int
    processes: int
    disk_bytes: int


@dataclass(frozen=True)
class View:
    """What a command in namespaces of its own gets to see beside the system, its work dir and a private /tmp."""

    readable: tuple[str, ...]
    """Directories and files, absolute, read-only."""
    network: bool


@dataclass(frozen=True)
class Job:
    """One command to run."""

    command: tuple[str, ...]
    environment: dict[str, str]
    work_dir: str
    wall_s: float
    output_bytes: int
    caps: Caps | None
    """``None``: none, for a command of ours such as a container engine's."""
    view: View | None
    """``None``: no namespaces; the command sees what this process sees."""


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    end: str
    exit_code: int | None
    stdout: bytes
    stderr: bytes
    output_cut: bool
    seconds: float


class SetupFailed(Exception):
    """The command could not be started for a reason that is not its own."""


def write_job(job: Job, stdin: bytes) -> bytes:
    """The message that asks for ``job``."""
    return b"".join((_frame({**asdict(job), "stdin": len(stdin)}), stdin))


def read_job(receive: Callable[[int], bytes]) -> tuple[Job, bytes]:
    """The job and its standard input. ``receive(n)`` gives at most n bytes, none at the end: then ``EOFError``."""
    (size,) = _SIZE.unpack(_exactly(receive, _SIZE.size))
    fields = json.loads(_exactly(receive, size))
    stdin = _exactly(receive, fields.pop("stdin"))
    fields["command"] = tuple(fields["command"])
    fields["caps"] = fields["caps"] and Caps(**fields["caps"])
    fields["view"] = fields["view"] and View(**fields["view"])
    return Job(**fields), stdin


def write_outcome(outcome: Outcome) -> bytes:
    """The message that tells it."""
    fields = asdict(outcome)
    stdout, stderr = fields.pop("stdout"), fields.pop("stderr")
    return b"".join((_frame({**fields, "stdout": len(stdout), "stderr": len(stderr)}), stdout, stderr))


def write_failure(reason: str) -> bytes:
    """The message that says why there is no outcome."""
    return _frame({"failed": reason})


def is_whole(message: bytes | bytearray) -> bool:
    """Whether an answer, outcome or failure, is all there."""
    if len(message) < _SIZE.size:
        return False
    head: int = _SIZE.size + _SIZE.unpack_from(message)[0]
    if len(message) < head:
        return False
    fields = json.loads(message[_SIZE.size : head])
    rest: int = fields.get("stdout", 0) + fields.get("stderr", 0)
    return len(message) >= head + rest


def read_outcome(message: bytes) -> Outcome:
    """The outcome in a whole message. Raises ``SetupFailed``."""
    head = _SIZE.size + _SIZE.unpack_from(message)[0]
    fields = json.loads(message[_SIZE.size : head])
    if "failed" in fields:
        raise SetupFailed(fields["failed"])
    cut = head + fields["stdout"]
    return Outcome(**{**fields, "stdout": message[head:cut], "stderr": message[cut:]})


def _frame(fields: dict[str, Any]) -> bytes:
    head = json.dumps(fields).encode()
    return _SIZE.pack(len(head)) + head


def _exactly(receive: Callable[[int], bytes], count: int) -> bytes:
    blocks: list[bytes] = []
    while count:
        block = receive(min(count, 1 << 20))
        if not block:
            raise EOFError
        blocks.append(block)
        count -= len(block)
    return b"".join(blocks)
