"""The one process that writes: spools in, ledger rows and sessions out.

    spool ─▶ batch ─▶ one transaction: ledger rows, recordings, offsets ─▶ stitcher ─▶ trace store, then marks
      ▲                                        │
      └── segments read to the end are deleted ┘   a failure anywhere: forget memory, wait, begin from the database

Exactly once: a record's ledger row and the offset behind it are one commit. What a killed sink had in memory stands
in the database as recordings without a session, and is stitched again into the same sessions. A database that is
locked, gone, full or slow makes the sink wait; the spool keeps everything meanwhile, up to its limit.

Calls are taken in order of their end over all workers, and one that began after the look at the spools began is
left for the next look: so a call never comes before the one whose answer it shows.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from firstchair.core.atomic import make_dirs, write_bytes, write_text
from firstchair.core.errors import ConfigError, DataError, FirstchairError
from firstchair.core.jsonl import SkipBad
from firstchair.gateway import recordings, stitch
from firstchair.gateway.blobs import BlobStore
from firstchair.gateway.control import ledger
from firstchair.gateway.control.store import ControlStore
from firstchair.gateway.records import CallRecord, decode_record
from firstchair.gateway.spool import BadFrame, Frame, SpoolReader, losses_of
from firstchair.gateway.stitch import NotStitched, ReadCall, Stitched, Stitcher, Stored
from firstchair.traces.database import open_engine, reading, store_url, writing
from firstchair.traces.store import NewSession, TraceStore

STATUS_FILE = "sink.json"
_HORIZON_US = 5_000_000
"""A call that began later than this after now has a wrong clock, and is not waited for."""
_WRITE_EVERY_S = 1.0
_MAX_WAIT_S = 5.0
_SESSIONS_AT_ONCE = 100
_PRUNE_EVERY_S = 3600.0
_PRUNE_AT_ONCE = 500
_BLOB_UNUSED_S = 3600.0
"""Another sink with the same folder may be about to name a blob that it has just put."""


class SinkConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a sink works on."""

    spool: Path
    database: str
    """The gateway's: ledger, recordings, offsets."""
    store: str
    """The trace store."""
    blobs: Path
    idle_s: float = stitch.IDLE_S
    max_unsaved_s: float = stitch.MAX_UNSAVED_S
    max_branches: int = stitch.MAX_BRANCHES
    max_branch_bytes: int = stitch.MAX_BYTES
    blob_over: int = 256 * 1024
    """Bytes of a request from which it becomes a blob."""
    keep_s: float | None = None
    """How long recordings are kept beside their sessions; ``None``: for ever. Ledger and sessions stay."""
    batch_records: int = 500
    batch_bytes: int = 16 * 1024 * 1024
    poll_s: float = 0.05


class SinkStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a sink is doing; in ``sink.json`` of the spool, about once a second."""

    at_us: int
    pid: int
    error: str = ""
    """What it is waiting for; empty when all is well."""
    waiting_bytes: int = 0
    """In the spool and not yet in the database."""
    records: int = 0
    """Taken into the ledger since the sink began."""
    sessions: int = 0
    """Written to the trace store since the sink began, each as often as it was."""
    open_branches: int = 0
    unsaved_calls: int = 0
    """In the ledger and not yet in the trace store."""
    left_out: dict[str, int] = {}
    """Calls that are in no session, by reason, since the sink began."""
    lost: dict[str, dict[str, int]] = {}
    """Records that were never written or cannot be read, by worker and reason, since the spool began."""
    damage: tuple[str, ...] = ()
    """The last places that hold no record, as file:offset."""


def read_status(spool: Path) -> SinkStatus | None:
    """The last status of a spool's sink; ``None`` when there is none."""
    try:
        return msgspec.json.decode((spool / STATUS_FILE).read_bytes(), type=SinkStatus)
    except (OSError, msgspec.MsgspecError):
        return None


class _Read(NamedTuple):
    """One thing read from a spool."""

    ended_us: float
    segment: str
    offset: int
    end: int
    data: bytes
    record: CallRecord | None
    fault: str = ""
    is_torn: bool = False

    @property
    def worker(self) -> str:
        return self.segment.partition(".")[0]


class _Bases:
    """The open databases."""

    def __init__(self, config: SinkConfig, spool_id: str, now_us: Callable[[], int]):
        self.spool_id, self._now_us = spool_id, now_us
        ControlStore.open(config.database).close()
        self.store = TraceStore.open(config.store)
        self.control: Engine = open_engine(store_url(config.database), must_exist=True)
        try:
            with writing(self.control) as connection:
                recordings.metadata.create_all(connection)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.control.dispose()
        self.store.close()

    # What the stitcher asks.

    def sessions_ending(self, ends: Sequence[str]) -> dict[str, list[str]]:
        with reading(self.control) as connection:
            return recordings.sessions_ending(connection, ends)

    def load(self, session_id: str) -> Stored | None:
        session = next(self.store.sessions(session_ids=[session_id]), None)
        return None if session is None else Stored(session, self.store.tools(session.catalog_id))

    def claim(self, session_id: str) -> bool:
        with reading(self.control) as connection:
            is_known = recordings.is_claimed(connection, session_id)
        # A name that the store knows from elsewhere (an import) is not ours to write over.
        if not is_known and self.store.count(session_ids=[session_id]):
            return False
        with writing(self.control) as connection:
            return recordings.claim_session(connection, self.spool_id, session_id, self._now_us())


class Sink:
    """One sink on one spool. Not shared between threads."""

    def __init__(
        self,
        config: SinkConfig,
        *,
        readers: stitch.Readers | None = None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ):
        """Raises ``ConfigError`` when another process is the sink of this spool."""
        make_dirs(config.spool)
        self._config, self._now_us = config, now_us
        self._readers = _readers() if readers is None else readers
        self._lock = (config.spool / "sink.lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise ConfigError(f"spool {config.spool}: another sink reads it; end that process first") from None
        self._reader, self._blobs = SpoolReader(config.spool), BlobStore(config.blobs)
        self._spool_id = ""
        self._bases: _Bases | None = None
        self._stitcher: Stitcher | None = None
        self._offsets: dict[str, int] = {}
        self._to_stitch: list[tuple[CallRecord, bytes | None]] = []
        self._kept_losses: dict[tuple[str, str], int] = {}
        self._records = self._sessions = 0
        self._left_out: Counter[str] = Counter()
        self._damage: deque[str] = deque(maxlen=20)
        self._error = ""
        self._wrote_at = self._told_at = float("-inf")
        self._prune_at = float("-inf")

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of databases and spool. What is not written yet is found again by the next sink."""
        self._forget()
        self._lock.close()

    # Rounds

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop``. Nothing that a database or disk does ends it."""
        waits = 0
        while not stop.is_set():
            busy = self._try_step()
            waits = 0 if busy is not None else waits + 1
            self._tell()
            if busy is None:
                stop.wait(min(_MAX_WAIT_S, 0.1 * 2 ** min(waits, 10)))
            elif not busy:
                stop.wait(self._config.poll_s)

    def drain(self, deadline_s: float) -> bool:
        """Take everything that stands in the spool and write every session; whether that was done in time.

        To be called when the workers have ended. What is left stays in the spool for the next sink.
        """
        until = time.monotonic() + deadline_s
        while True:
            busy = self._try_step(everything=True)
            is_done = busy == 0 and not self._reader.waiting_bytes(self._offsets) and not self._unsaved
            if is_done or time.monotonic() >= until:
                self._tell(now=True)
                return is_done
            if not busy:
                time.sleep(0.02 if busy == 0 else 0.2)

    def _try_step(self, *, everything: bool = False) -> int | None:
        """One round; ``None`` when it failed, and memory has then been forgotten."""
        try:
            count = self.step(everything=everything)
        except Exception as error:  # noqa: BLE001 - the process's main loop: whatever it was, the spool keeps the calls
            self._forget()
            self._error = str(error) if isinstance(error, FirstchairError) else f"{type(error).__name__}: {error}"
            return None
        self._error = ""
        return count

    def step(self, *, everything: bool = False) -> int:
        """One round: take a batch, stitch it, write what is due. How many records it took.

        Raises what databases and disk raise. Nothing is lost then, but the sink must be closed.
        """
        bases, stitcher = self._connected()
        batch = self._batch()
        if batch:
            self._commit(bases, batch)
        self._stitch(stitcher)
        all_read = everything and not batch
        if all_read or time.monotonic() - self._wrote_at >= _WRITE_EVERY_S:
            self._write_due(bases, stitcher, everything=all_read)
            self._wrote_at = time.monotonic()
        deleted = self._reader.delete_read(self._offsets)
        if deleted:
            # The file goes first: an offset without a file is nothing, a file without its offset is read again.
            with writing(bases.control) as connection:
                recordings.forget_segments(connection, self._spool_id, deleted)
            for segment in deleted:
                self._offsets.pop(segment, None)
        if self._config.keep_s is not None:
            self._prune(bases, self._config.keep_s)
        return len(batch)

    def _prune(self, bases: _Bases, keep_s: float) -> None:
        """Now and then, and some at a time, delete recordings that are old enough."""
        if time.monotonic() < self._prune_at:
            return
        before_us = self._now_us() - int(keep_s * 1e6)
        with writing(bases.control) as connection:
            count, unused = recordings.prune_recordings(
                connection, before_us, spool=self._spool_id, limit=_PRUNE_AT_ONCE
            )
        for name in unused:
            self._blobs.delete(name, unused_s=min(_BLOB_UNUSED_S, keep_s))
        self._prune_at = time.monotonic() + (1.0 if count >= _PRUNE_AT_ONCE else _PRUNE_EVERY_S)

    def _connected(self) -> tuple[_Bases, Stitcher]:
        """The databases and the stitcher, made and brought up to date if need be."""
        if self._bases is not None and self._stitcher is not None:
            return self._bases, self._stitcher
        config = self._config
        self._spool_id = self._spool_id or _spool_id(config.spool)  # here, because a full disk is waited for
        bases = _Bases(config, self._spool_id, self._now_us)
        self._bases = bases
        with reading(bases.control) as connection:
            self._offsets = recordings.read_offsets(connection, self._spool_id)
            waiting = recordings.unstitched_ids(connection, self._spool_id)
            self._kept_losses = recordings.read_losses(connection, self._spool_id)
        stitcher = Stitcher(
            self._readers,
            bases,
            idle_s=config.idle_s,
            max_unsaved_s=config.max_unsaved_s,
            max_branches=config.max_branches,
            max_bytes=config.max_branch_bytes,
        )
        self._stitcher = stitcher
        stitcher.replaying(waiting)
        self._replay(bases, stitcher)
        return bases, stitcher

    def _replay(self, bases: _Bases, stitcher: Stitcher) -> None:
        """Stitch again what stood in the memory of a sink that ended early."""
        after = 0
        while True:
            with reading(bases.control) as connection:
                found = recordings.unstitched(connection, self._spool_id, after=after)
            if not found:
                return
            after = found[-1][0]
            self._to_stitch.extend((record, record.request or None) for _, record in found)
            self._stitch(stitcher)
            self._write_due(bases, stitcher)

    def _forget(self) -> None:
        """Drop all memory: what the database says holds."""
        if self._bases is not None:
            self._bases.close()
        self._bases = self._stitcher = None
        self._to_stitch.clear()

    # Reading

    def _batch(self) -> list[_Read]:
        horizon_us = self._now_us()  # before the look at the files: what began later is not taken
        streams = (self._decoded(stream, horizon_us) for stream in self._reader.streams(self._offsets))
        batch, size = [], 0
        for read in heapq.merge(*streams, key=lambda read: read.ended_us):
            batch.append(read)
            size += len(read.data)
            if len(batch) >= self._config.batch_records or size >= self._config.batch_bytes:
                break
        return batch

    def _decoded(self, stream: Iterator[Frame | BadFrame], horizon_us: int) -> Iterator[_Read]:
        ended_us = 0.0
        for found in stream:
            if isinstance(found, BadFrame):
                yield _Read(ended_us, found.segment, found.offset, found.end, b"", None, found.reason, found.torn)
                continue
            try:
                record = decode_record(found.data)
            except msgspec.MsgspecError as error:
                place = f"{self._config.spool / found.segment}:{found.offset}"
                yield _Read(ended_us, found.segment, found.offset, found.end, found.data, None, f"{place}: {error}")
                continue
            if horizon_us <= record.received_us < horizon_us + _HORIZON_US:
                return
            ended_us = record.received_us + record.latency_ms * 1000
            yield _Read(ended_us, found.segment, found.offset, found.end, found.data, record)

    # Writing

    def _commit(self, bases: _Bases, batch: list[_Read]) -> None:
        """Ledger rows, recordings, losses and offsets, all of it or nothing."""
        read = [(self._detached(item.record), item.record.request) for item in batch if item.record is not None]
        records = [record for record, _ in read]
        moved = {item.segment: item.end for item in batch}
        lost = self._losses_with(batch)
        with writing(bases.control) as connection:
            ledger.insert_records(connection, records)
            recordings.insert_recordings(connection, self._spool_id, records)
            recordings.move_offsets(connection, self._spool_id, moved)
            recordings.keep_losses(connection, self._spool_id, lost)
        self._offsets.update(moved)
        self._kept_losses.update(lost)
        self._records += len(records)
        self._damage.extend(item.fault for item in batch if item.fault)
        self._to_stitch.extend((record, body or None) for record, body in read)

    def _detached(self, record: CallRecord) -> CallRecord:
        """``record`` with a large request as a blob."""
        if len(record.request) < self._config.blob_over:
            return record
        try:
            name = self._blobs.put(record.request)
        except DataError:  # larger than a blob may be: the database takes it
            return record
        return msgspec.structs.replace(record, request=b"", request_blob=name)

    def _losses_with(self, batch: list[_Read]) -> dict[tuple[str, str], int]:
        """The counts that change: what workers say that they lost, and what of ``batch`` is no record.

        Bytes that are a whole frame and no record are kept as files beside the spool.
        """
        found = {
            (item.worker, name): lost for item in losses_of(self._config.spool) for name, lost in item.lost.items()
        }
        for item in batch:
            if item.record is not None:
                continue
            key = (item.worker, "torn" if item.is_torn else "damaged" if not item.data else "unreadable")
            found[key] = found.get(key, self._kept_losses.get(key, 0)) + 1
            if item.data:
                path = self._config.spool / "unreadable" / f"{item.segment}.{item.offset}"
                write_bytes(path, item.data, force=True)
        return {key: lost for key, lost in found.items() if lost != self._kept_losses.get(key)}

    def _stitch(self, stitcher: Stitcher) -> None:
        """Hand what was committed to the stitcher, and note what is in no session."""
        left_out: dict[str, str] = {}
        calls: list[ReadCall] = []
        for record, body in self._to_stitch:
            with _surviving(record, left_out):
                calls.append(stitcher.read(record, self._body(record) if body is None else body))
        # Nothing is written until all are placed, so one look at the database serves them all.
        stored = stitcher.stored_ends(calls)
        for call in calls:
            with _surviving(call.record, left_out):
                stitcher.place(call, stored, self._now_us())
        self._to_stitch.clear()
        self._note_left_out(left_out)

    def _body(self, record: CallRecord) -> bytes:
        try:
            return recordings.request_of(record, self._blobs)
        except (ConfigError, DataError) as error:
            raise NotStitched(f"blob: {error}") from None

    def _note_left_out(self, reasons: dict[str, str]) -> None:
        if not reasons or self._bases is None:
            return
        with writing(self._bases.control) as connection:
            recordings.mark_left_out(connection, reasons)
        self._left_out.update(reason.partition(":")[0] for reason in reasons.values())

    def _write_due(self, bases: _Bases, stitcher: Stitcher, *, everything: bool = False) -> None:
        """Write the sessions that are due, then say so in the gateway's database."""
        due = stitcher.due(self._now_us(), everything=everything)
        for start in range(0, len(due), _SESSIONS_AT_ONCE):
            self._write(bases, stitcher, due[start : start + _SESSIONS_AT_ONCE])

    def _write(self, bases: _Bases, stitcher: Stitcher, due: list[Stitched]) -> None:
        origins = {f"gateway:{item.session.session_id}": item for item in due}
        skip = SkipBad(allowed=len(due))
        bases.store.add(
            (NewSession(item.session, origin=origin) for origin, item in origins.items()),
            {item.session.catalog_id: item.tools for item in due if item.session.catalog_id},
            on_conflict="replace",
            skip=skip,
        )
        bad = {error.path or "": error for error in skip.skipped}
        now_us = self._now_us()
        written = [item for origin, item in origins.items() if origin not in bad]
        with writing(bases.control) as connection:
            calls = [(call_id, item.session) for item in written for call_id in item.call_ids]
            recordings.mark_stitched(connection, {call_id: session.session_id for call_id, session in calls})
            ends = {item.session.session_id: item.end for item in written}
            recordings.keep_ends(connection, self._spool_id, ends, now_us)
            # A report by session counts the branches of a named session as that session.
            named = {call_id: str(session.meta.get("branch_of", session.session_id)) for call_id, session in calls}
            ledger.set_sessions(connection, named)
        for item in written:
            stitcher.saved(item, now_us)
        self._sessions += len(written)
        for origin, error in bad.items():
            self._note_left_out(dict.fromkeys(origins[origin].call_ids, f"invalid: {error}"))
            stitcher.drop(origins[origin])

    # Telling

    def status(self) -> SinkStatus:
        """How it is doing."""
        lost: dict[str, dict[str, int]] = {}
        for (worker, reason), count in sorted(self._kept_losses.items()):
            lost.setdefault(worker, {})[reason] = count
        for losses in losses_of(self._config.spool):
            lost.setdefault(losses.worker, {}).update(losses.lost)
        return SinkStatus(
            at_us=self._now_us(),
            pid=os.getpid(),
            error=self._error,
            waiting_bytes=self._reader.waiting_bytes(self._offsets),
            records=self._records,
            sessions=self._sessions,
            open_branches=0 if self._stitcher is None else len(self._stitcher),
            unsaved_calls=self._unsaved,
            left_out=dict(self._left_out),
            lost=lost,
            damage=tuple(self._damage),
        )

    @property
    def _unsaved(self) -> int:
        return len(self._to_stitch) + (0 if self._stitcher is None else self._stitcher.unsaved)

    def _tell(self, *, now: bool = False) -> None:
        if not now and time.monotonic() - self._told_at < _WRITE_EVERY_S:
            return
        self._told_at = time.monotonic()
        # A full disk must not end the sink: the status is then old, and says when it was written.
        with contextlib.suppress(FirstchairError, OSError):
            write_text(self._config.spool / STATUS_FILE, msgspec.json.encode(self.status()).decode(), force=True)


@contextlib.contextmanager
def _surviving(record: CallRecord, left_out: dict[str, str]) -> Iterator[None]:
    """One call that trips the stitcher must not end all recording: it goes into ``left_out`` with the reason."""
    try:
        yield
    except NotStitched as error:
        left_out[record.call_id] = str(error)
    except (FirstchairError, SQLAlchemyError, OSError):
        raise  # the databases, not the call
    except Exception as error:  # noqa: BLE001 - see above
        left_out[record.call_id] = f"fault: {type(error).__name__}"


def _spool_id(spool: Path) -> str:
    """The name of a spool in the database, where several gateways may keep their offsets."""
    path = spool / "spool.id"
    with contextlib.suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8").strip()
    write_text(path, secrets.token_hex(16))
    return path.read_text(encoding="utf-8").strip()


def _readers() -> stitch.Readers:
    from firstchair.gateway.dialects.known import known_dialects

    return {name: dialect.read_request for name, dialect in known_dialects().items()}
