"""What the sink keeps in the gateway's database beside the ledger: how far it has read, and the calls themselves.

    gateway_spool_offsets   segment → how far it is read; moves in the transaction that keeps its records
    gateway_recordings      every recorded call as it came, request byte for byte; session_id once a session holds it
    gateway_sessions        session → the key of its end, by which the call that goes on from it finds it
    gateway_losses          records that never came here, by worker and reason

A recording without ``session_id`` and ``note`` is still to be put into a session: after a crash the sink begins
with these, so that what a killed process held in memory is not lost.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
    delete,
    insert,
    inspect,
    select,
    update,
)

from firstchair.core.errors import ConfigError
from firstchair.gateway.blobs import BlobStore
from firstchair.gateway.records import CallRecord, Outcome, decode_record, encode_record

metadata = MetaData()

_auto = BigInteger().with_variant(Integer, "sqlite")

offsets = Table(
    "gateway_spool_offsets",
    metadata,
    Column("spool", String(32), primary_key=True),
    Column("segment", String(128), primary_key=True),
    Column("offset", BigInteger, nullable=False),
)

recordings = Table(
    "gateway_recordings",
    metadata,
    Column("seq", _auto, primary_key=True, autoincrement=True),
    Column("call_id", String(64), nullable=False, unique=True),
    Column("spool", String(32), nullable=False),
    Column("received_us", BigInteger, nullable=False),
    Column("session_id", Text),  # NULL: not in a session (yet)
    Column("note", Text),  # why it never will be: "shadow", "unreadable request"
    Column("blob", String(64), nullable=False),  # of a large request; "" for others
    Column("record", LargeBinary, nullable=False),  # the record, zlib
    Index("ix_gateway_recordings_received", "received_us"),
    Index("ix_gateway_recordings_session", "session_id"),
)

sessions = Table(
    "gateway_sessions",
    metadata,
    Column("session_id", Text, primary_key=True),
    Column("spool", String(32), nullable=False),
    Column("end_key", String(64)),  # NULL: the name is taken and nothing has been written yet
    Column("updated_us", BigInteger, nullable=False),
    Index("ix_gateway_sessions_end", "end_key"),
)

losses = Table(
    "gateway_losses",
    metadata,
    Column("spool", String(32), primary_key=True),
    Column("worker", String(64), primary_key=True),
    Column("reason", String(32), primary_key=True),
    Column("lost", BigInteger, nullable=False),
)

_CHUNK = 500
"""Values of one ``IN``."""


def read_offsets(connection: Connection, spool: str) -> dict[str, int]:
    """How far each segment of a spool has been read."""
    query = select(offsets.c.segment, offsets.c.offset).where(offsets.c.spool == spool)
    return {row.segment: row.offset for row in connection.execute(query)}


def move_offsets(connection: Connection, spool: str, moved: Mapping[str, int]) -> None:
    """Keep new offsets."""
    forget_segments(connection, spool, moved)
    if moved:
        rows = [{"spool": spool, "segment": segment, "offset": offset} for segment, offset in moved.items()]
        connection.execute(insert(offsets), rows)


def forget_segments(connection: Connection, spool: str, segments: Iterable[str]) -> None:
    """Forget the offsets of segments, which must be deleted: their names never return."""
    for chunk in _chunks(list(segments)):
        connection.execute(delete(offsets).where(offsets.c.spool == spool, offsets.c.segment.in_(chunk)))


def insert_recordings(connection: Connection, spool: str, records: Sequence[CallRecord]) -> None:
    """Keep the calls that are not here and have something to keep. A shadow's request is that of the call it copies;
    what the gateway refused, perhaps to a stranger, is not kept.
    """
    wanted = {
        record.call_id: record
        for record in records
        if (record.request or record.request_blob or record.answer is not None)
        and record.outcome is not Outcome.REFUSED
    }
    for chunk in _chunks(list(wanted)):
        known = connection.execute(select(recordings.c.call_id).where(recordings.c.call_id.in_(chunk))).scalars()
        for call_id in known:
            del wanted[call_id]
    rows = [
        {
            "call_id": record.call_id,
            "spool": spool,
            "received_us": record.received_us,
            "note": "shadow" if record.variant == "shadow" else None,
            "blob": record.request_blob if record.variant != "shadow" else "",
            "record": zlib.compress(encode_record(_without_copies(record)), 1),
        }
        for record in wanted.values()
    ]
    if rows:
        connection.execute(insert(recordings), rows)


def _without_copies(record: CallRecord) -> CallRecord:
    if record.variant != "shadow":
        return record
    return msgspec.structs.replace(record, request=b"", request_blob="")


def unstitched(
    connection: Connection, spool: str, *, after: int = 0, limit: int = 100
) -> list[tuple[int, CallRecord]]:
    """Recordings, in order of arrival, that are still to be put into a session, with what to pass as ``after``."""
    query = (
        select(recordings.c.seq, recordings.c.record)
        .where(
            recordings.c.spool == spool,
            recordings.c.session_id.is_(None),
            recordings.c.note.is_(None),
            recordings.c.seq > after,
        )
        .order_by(recordings.c.seq)
        .limit(limit)
    )
    return [(seq, decode_record(zlib.decompress(record))) for seq, record in connection.execute(query)]


def unstitched_ids(connection: Connection, spool: str) -> list[str]:
    """The calls of ``unstitched``."""
    query = select(recordings.c.call_id).where(
        recordings.c.spool == spool, recordings.c.session_id.is_(None), recordings.c.note.is_(None)
    )
    return list(connection.execute(query).scalars())


def mark_stitched(connection: Connection, sessions_of: Mapping[str, str]) -> None:
    """Say which session holds calls (call id → session id)."""
    if sessions_of:
        one = update(recordings).where(recordings.c.call_id == bindparam("of_call"))
        rows = [{"of_call": call_id, "to_session": session} for call_id, session in sessions_of.items()]
        connection.execute(one.values(session_id=bindparam("to_session"), note=None), rows)


def mark_left_out(connection: Connection, reasons: Mapping[str, str]) -> None:
    """Say of calls (call id → reason) that no session will hold them."""
    for call_id, reason in reasons.items():
        connection.execute(
            update(recordings).where(recordings.c.call_id == call_id).values(note=reason[:200].replace("\x00", " "))
        )


def read_recording(connection: Connection, call_id: str, blobs: BlobStore) -> CallRecord:
    """One call as it was recorded, its request in place. Raises ``ConfigError`` when it was not.

    A shadow's request is that of the call it copies, or empty when that is no longer here.
    """
    kept = inspect(connection).has_table(recordings.name)  # a store that no gateway ever wrote to has none
    record = _found(connection, call_id) if kept else None
    if record is None:
        raise ConfigError(f"call {call_id[:80]!r}: not recorded here; `firstchair gateway tail --json` lists calls")
    holder = _found(connection, record.shadow_of) if record.variant == "shadow" else record
    request = b"" if holder is None else request_of(holder, blobs)
    return msgspec.structs.replace(record, request=request, request_blob="")


def _found(connection: Connection, call_id: str) -> CallRecord | None:
    data = connection.execute(select(recordings.c.record).where(recordings.c.call_id == call_id)).scalar()
    return None if data is None else decode_record(zlib.decompress(data))


def request_of(record: CallRecord, blobs: BlobStore) -> bytes:
    """The request's bytes, wherever they lie."""
    return blobs.get(record.request_blob) if record.request_blob else record.request


def prune_recordings(
    connection: Connection, before_us: int, *, spool: str | None = None, limit: int | None = None
) -> tuple[int, list[str]]:
    """Delete the recordings of calls before a time that are in their session or never will be: how many, and the
    blobs that nothing needs any more, which the caller deletes after the commit. Sessions stay.

    ``spool``: only what came from there. ``limit``: so many, the oldest first.
    """
    old: ColumnElement[bool] = (recordings.c.received_us < before_us) & (
        recordings.c.session_id.is_not(None) | recordings.c.note.is_not(None)
    )
    if spool is not None:
        old = old & (recordings.c.spool == spool)
    if limit is not None:
        first = select(recordings.c.seq).where(old).order_by(recordings.c.received_us).limit(limit)
        old = recordings.c.seq.in_(list(connection.execute(first).scalars()))
    blobs = set(
        connection.execute(select(recordings.c.blob).where(old, recordings.c.blob != "").distinct()).scalars()
    )
    count = connection.execute(delete(recordings).where(old)).rowcount
    for chunk in _chunks(sorted(blobs)):
        blobs -= set(connection.execute(select(recordings.c.blob).where(recordings.c.blob.in_(chunk))).scalars())
    return count, sorted(blobs)


def sessions_ending(connection: Connection, ends: Sequence[str]) -> dict[str, list[str]]:
    """Of ``ends``, those at which written sessions end, and which, the oldest first."""
    found: dict[str, list[str]] = {}
    for chunk in _chunks(ends):
        query = (
            select(sessions.c.end_key, sessions.c.session_id)
            .where(sessions.c.end_key.in_(chunk))
            .order_by(sessions.c.updated_us, sessions.c.session_id)
        )
        for end, session_id in connection.execute(query):
            found.setdefault(end, []).append(session_id)
    return found


def is_claimed(connection: Connection, session_id: str) -> bool:
    """Whether a session's name is taken, by whomever."""
    query = select(sessions.c.session_id).where(sessions.c.session_id == session_id)
    return connection.execute(query).first() is not None


def claim_session(connection: Connection, spool: str, session_id: str, now_us: int) -> bool:
    """Take a session's name; whether it is this spool's and nothing has been written under it."""
    query = select(sessions.c.spool, sessions.c.end_key).where(sessions.c.session_id == session_id)
    row = connection.execute(query).first()
    if row is None:
        row_in = {"session_id": session_id, "spool": spool, "end_key": None, "updated_us": now_us}
        connection.execute(insert(sessions), [row_in])
        return True
    return bool(row[0] == spool and row[1] is None)


def keep_ends(connection: Connection, spool: str, ends: Mapping[str, str], now_us: int) -> None:
    """Keep where written sessions end (session id → key)."""
    known: set[str] = set()
    for chunk in _chunks(list(ends)):
        query = select(sessions.c.session_id).where(sessions.c.session_id.in_(chunk))
        known.update(connection.execute(query).scalars())
    old = [{"of_session": name, "to_end": end} for name, end in ends.items() if name in known]
    new = [{"session_id": name, "end_key": end} for name, end in ends.items() if name not in known]
    if old:
        one = update(sessions).where(sessions.c.session_id == bindparam("of_session"))
        connection.execute(one.values(end_key=bindparam("to_end"), updated_us=now_us), old)
    if new:
        connection.execute(insert(sessions), [{**row, "spool": spool, "updated_us": now_us} for row in new])


def keep_losses(connection: Connection, spool: str, counts: Mapping[tuple[str, str], int]) -> None:
    """Keep how many records were lost in all, by (worker, reason)."""
    for (worker, reason), lost in counts.items():
        where = (losses.c.spool == spool) & (losses.c.worker == worker) & (losses.c.reason == reason)
        if not connection.execute(update(losses).where(where).values(lost=lost)).rowcount:
            row = {"spool": spool, "worker": worker, "reason": reason, "lost": lost}
            connection.execute(insert(losses), [row])


def read_losses(connection: Connection, spool: str | None = None) -> dict[tuple[str, str], int]:
    """Records lost, by (worker, reason): of one spool, or of all."""
    query = select(losses.c.worker, losses.c.reason, losses.c.lost)
    if spool is not None:
        query = query.where(losses.c.spool == spool)
    found: dict[tuple[str, str], int] = {}
    for worker, reason, lost in connection.execute(query):
        found[worker, reason] = found.get((worker, reason), 0) + lost
    return found


def _chunks(values: Sequence[str]) -> Iterable[Sequence[str]]:
    return (values[start : start + _CHUNK] for start in range(0, len(values), _CHUNK))
