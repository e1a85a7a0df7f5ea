"""The gateway between the demo's harness and its models: its files, its processes, and what it recorded.

    harness ── x-firstchair-session: TASK ──► gateway ──► incumbent (the teacher), candidate (the trained model)
                                                 └─ spool ─► sink ─► gateway.db (ledger), traces.db (sessions)

The processes are those of ``firstchair gateway serve`` on the ``gateway.yaml`` that is written here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml
from sqlalchemy import func, select

from firstchair.core.atomic import make_dirs, write_text
from firstchair.core.errors import RunFailed
from firstchair.gateway.config import Provider, load_config
from firstchair.gateway.control.slots import Route
from firstchair.gateway.control.store import Change, ControlStore
from firstchair.gateway.control.tables import ledger
from firstchair.rollout.desk.server import MODEL
from firstchair.rollout.episodes import Episode
from firstchair.traces.session import Session, Source
from firstchair.traces.store import TraceStore

SLOT = "orchestrator"
INCUMBENT = Route(provider="incumbent", model=MODEL)
CANDIDATE = Route(provider="candidate", model="desk-sft")
SESSION_HEADER = "x-firstchair-session"
START_S = 120.0
STOP_S = 90.0
STALL_S = 60.0
"""How long the ledger may stand still before all calls are in it."""

_HEAD = "# Written by `firstchair demo`. The ports are those of its last run; nobody listens there any more.\n"
_PRICES = """\
# Pretend prices in USD per million tokens. The teacher is a program and costs nothing; it is priced as a large hosted
# model might be, and the trained model as a small one on a machine of one's own, so that the ledger has a story.
version: demo-pretend
models:
  incumbent/desk-teacher: {input: 3, output: 15}
  candidate/desk-sft: {input: 0.05, output: 0.2}
"""


@dataclass(frozen=True)
class GatewayFiles:
    """Where a demo's gateway keeps what it needs."""

    out: Path

    @property
    def folder(self) -> Path:
        return self.out / "gateway"

    @property
    def config(self) -> Path:
        return self.folder / "gateway.yaml"

    @property
    def database(self) -> Path:
        return self.folder / "gateway.db"

    @property
    def log(self) -> Path:
        return self.folder / "gateway.log"

    @property
    def traces(self) -> Path:
        return self.out / "traces.db"

    def write(self, providers: Mapping[str, str]) -> None:
        """``gateway.yaml`` and its prices; ``providers``: OpenAI-compatible base URLs by name."""
        make_dirs(self.folder)
        data: dict[str, Any] = {
            "listen": {"port": 0, "admin_port": 0},
            "auth": {"require_keys": False},
            "database": "gateway.db",
            "spool": "spool",
            "prices": "prices.yaml",
            # What is said in the desk is made up; there is nothing to redact, and training wants it as it was.
            # Sessions are written while others go on: a process that waits until the end leaves a core idle.
            "recording": {"store": "../traces.db", "redact": False, "idle_s": 5.0},
            "logs": {"calls": False},
            "providers": {name: {"type": "openai-compatible", "base_url": url} for name, url in providers.items()},
            "slots": [
                {
                    "slot": SLOT,
                    "match": [MODEL],
                    "primary": INCUMBENT.model_dump(),
                    "counterfactual": str(INCUMBENT),
                    "retries": {"attempts": 2, "backoff_s": 0.05},
                }
            ],
        }
        write_text(self.folder / "prices.yaml", _PRICES, force=True)
        write_text(self.config, _HEAD + yaml.safe_dump(data, sort_keys=False), force=True)


# --- processes --------------------------------------------------------------------------------------------------


class RunningGateway:
    """The processes while they run."""

    def __init__(self, files: GatewayFiles, process: subprocess.Popen[bytes], port: int):
        self.files, self._process = files, process
        self.openai_url = f"http://127.0.0.1:{port}/v1"

    def wait_for_rows(self, calls: int) -> None:
        """Wait until the ledger has a row for each of ``calls`` calls. Raises ``RunFailed`` when it stands still."""
        found, moved_at = -1, time.monotonic()
        with ControlStore.open(self.files.database, must_exist=True) as store:
            while (rows := ledger_rows(store)) < calls:
                if rows != found:
                    found, moved_at = rows, time.monotonic()
                if self._process.poll() is not None or time.monotonic() - moved_at > STALL_S:
                    raise RunFailed(f"the ledger has {rows:,} rows of {calls:,} calls; {self.files.log} may say why")
                time.sleep(0.05)

    def make(self, change: Callable[[ControlStore], Change]) -> Change:
        """Change a slot; when this returns the change holds on the next request of every worker."""
        with ControlStore.open(self.files.database, must_exist=True, providers=self._providers()) as store:
            made = change(store)
            deadline = time.monotonic() + STALL_S
            while True:
                workers = store.workers()
                if workers and all(worker.seen_revision >= made.revision for worker in workers):
                    return made
                if time.monotonic() > deadline:
                    raise RunFailed(f"no worker took up {made.version.action} of {SLOT}; see {self.files.log}")
                time.sleep(0.02)

    def _providers(self) -> Mapping[str, Provider]:
        return load_config(self.files.config).providers


@contextmanager
def running_gateway(files: GatewayFiles) -> Iterator[RunningGateway]:
    """The gateway of ``files`` for the length of the block; after it every call is in the ledger and in a session.

    Its processes also end when this one dies, however it dies: one of them watches the pipe that is their standard
    input. Raises ``RunFailed`` when it does not come up, or does not stop with everything written.
    """
    with files.log.open("ab") as log:
        begins = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "firstchair.cli.demo_gateway", str(files.config)],
            stdin=subprocess.PIPE,
            stderr=log,
            # Ctrl-C in a terminal goes to the whole group; this one stops when its input ends.
            start_new_session=True,
        )
    assert process.stdin is not None
    try:
        yield RunningGateway(files, process, _port(files.log, begins, process))
        process.stdin.close()
        code = process.wait(timeout=STOP_S)
        if code:
            raise RunFailed(f"the gateway stopped with exit code {code}; {files.log} says why")
    except subprocess.TimeoutExpired:
        raise RunFailed(f"the gateway did not stop within {STOP_S:g} s; {files.log} may say why") from None
    finally:
        process.stdin.close()
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _port(log: Path, begins: int, process: subprocess.Popen[bytes]) -> int:
    """Where it listens, as it says in its log."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with log.open("rb") as file:
            file.seek(begins)
            lines = file.read().splitlines()
        for line in lines:
            with contextlib.suppress(msgspec.DecodeError):
                said = msgspec.json.decode(line)
                if isinstance(said, dict) and said.get("event") == "listening":
                    return int(said["port"])
        if process.poll() is not None:
            last = lines[-1].decode(errors="replace") if lines else "it said nothing"
            raise RunFailed(f"the gateway ended with exit code {process.returncode} before it listened: {last}")
        time.sleep(0.02)
    raise RunFailed(f"the gateway did not listen within {START_S:g} s; {log} may say why")


def _serve(config: str) -> int:
    """The gateway's first process, and beside it one that stops it when standard input ends."""
    from firstchair.gateway.serve import serve

    parent = os.getpid()
    if not os.fork():
        while os.read(0, 4096):
            pass
        if os.getppid() == parent:
            os.kill(parent, signal.SIGTERM)
        os._exit(0)
    return serve(lambda: load_config(Path(config)))


# --- what it recorded -------------------------------------------------------------------------------------------


def ledger_rows(store: ControlStore) -> int:
    """Calls of the demo's slot in the ledger."""
    with store.reading() as connection:
        query = select(func.count()).select_from(ledger).where(ledger.c.slot == SLOT)
        return int(connection.execute(query).scalar_one())


def recorded_sessions(store: TraceStore, episodes: Sequence[Episode], *, source: Source) -> list[Session]:
    """What the gateway recorded of ``episodes``, in their order, with what only the harness knows laid over it: the
    labels, how it was judged, where it came from. The store is given them too.

    Raises ``RunFailed`` unless each episode is one session, message by message and call by call what the harness saw.
    """
    # As the sink writes them; those of an earlier stage have got their source since.
    found = {session.session_id: session for session in store.sessions(source="production")}
    extra = sorted(found.keys() - {episode.task_id for episode in episodes})
    if extra:
        raise RunFailed(f"the gateway recorded {extra[0]} beside its session: {len(extra)} in all; expected none")
    sessions = [_joined(found.get(episode.task_id), episode, source) for episode in episodes]
    store.add(
        sessions,
        {episode.session.catalog_id: episode.tools for episode in episodes},
        on_conflict="replace",
    )
    return sessions


def _joined(recorded: Session | None, episode: Episode, source: Source) -> Session:
    seen, name = episode.session, episode.task_id
    if recorded is None:
        raise RunFailed(f"session {name}: not recorded; the harness saw {len(seen.calls)} calls")
    if len(recorded.calls) != len(seen.calls):
        raise RunFailed(f"session {name}: {len(recorded.calls)} calls recorded; the harness saw {len(seen.calls)}")
    if recorded.catalog_id != seen.catalog_id:
        raise RunFailed(f"session {name}: the recorded tools are not those of the harness")
    # What follows the model's last answer was sent to nobody: results of the call at which a session was ended.
    last = max(place for place, message in enumerate(seen.messages) if message.role == "assistant")
    sent = seen.messages[: last + 1]
    if recorded.messages != sent:
        pairs = enumerate(zip(recorded.messages, sent, strict=False))
        place = next((place for place, (one, other) in pairs if one != other), "at its end")
        raise RunFailed(f"session {name}: message {place} is not recorded as the harness saw it")
    return msgspec.structs.replace(
        recorded,
        source=source,
        labels={**recorded.labels, **seen.labels},
        meta={**recorded.meta, **seen.meta},
    )


if __name__ == "__main__":
    sys.exit(_serve(sys.argv[1]))
