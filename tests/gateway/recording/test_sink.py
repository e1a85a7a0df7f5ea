import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import create_engine, func, inspect, select, text
from tests.gateway.recording.calls import READERS, START_US, SYSTEM, called, record, said, user

from firstchair.cli.main import main
from firstchair.core.errors import ConfigError
from firstchair.gateway import recordings
from firstchair.gateway.blobs import BlobStore
from firstchair.gateway.control import tables
from firstchair.gateway.records import Outcome, encode_record
from firstchair.gateway.sink import Sink, SinkConfig, read_status
from firstchair.gateway.spool import SpoolReader, SpoolWriter
from firstchair.traces import schema
from firstchair.traces.database import open_engine, reading, store_url
from firstchair.traces.store import TraceStore


def config_in(folder, **fields):
    return SinkConfig(
        **{
            "spool": folder / "spool",
            "database": str(folder / "gateway.db"),
            "store": str(folder / "traces.db"),
            "blobs": folder / "blobs",
            **fields,
        }
    )


@pytest.fixture
def config(tmp_path):
    return config_in(tmp_path)


@pytest.fixture(params=["sqlite", "postgresql"])
def either(request, tmp_path):
    """A configuration with files, and one with everything in one PostgreSQL database."""
    if request.param == "sqlite":
        yield config_in(tmp_path)
        return
    url = request.getfixturevalue("postgres_database")
    yield config_in(tmp_path, database=url, store=url)
    engine = create_engine(url)
    mine = [*schema.metadata.tables, *recordings.metadata.tables, *tables.metadata.tables]
    kept = {"store_info", "gateway_info"}
    with engine.begin() as connection:
        there = set(inspect(connection).get_table_names())
        connection.execute(text(f"TRUNCATE {', '.join(name for name in mine if name in there - kept)}"))
    engine.dispose()


def spool_of(config, worker="w0", **options):
    return SpoolWriter(config.spool, worker, **options)


def write(config, *records, worker="w0", **options):
    with spool_of(config, worker, **options) as spool:
        for item in records:
            assert spool.append(encode_record(item))


def drained(config, deadline_s=20.0, **options):
    with Sink(config, readers=READERS, **options) as sink:
        assert sink.drain(deadline_s), sink.status()
        return sink.status()


def ledger_ids(config):
    with reading(open_engine(store_url(config.database), must_exist=True)) as connection:
        return list(connection.execute(select(tables.ledger.c.call_id).order_by(tables.ledger.c.seq)).scalars())


def stored(config):
    with TraceStore.open(config.store, must_exist=True) as store:
        return list(store.sessions())


def conversation(count, **fields):
    """Calls of one session, each going on from the one before."""
    rows, made = [SYSTEM, user(f"go {random.random()}")], []
    for number in range(count):
        answer, echo = said(f"reply {number}")
        made.append(record(rows, answer, **fields))
        rows = [*rows, *echo, user(f"next {number}")]
    return made


def test_calls_become_ledger_rows_recordings_and_a_session_and_the_spool_is_emptied(either):
    a1, echo = called()
    rows = [SYSTEM, user("go\x00 \u2028")]
    calls = [record(rows, a1, worker="w0"), record([*rows, *echo], said("done")[0], worker="w1")]
    shadow = record(rows, a1, variant="shadow", shadow_of=calls[0].call_id)
    refused = record([user("x")], None, outcome=Outcome.REFUSED, status=401)
    write(either, calls[0], shadow)
    write(either, calls[1], refused, worker="w1")
    status = drained(either)
    assert sorted(ledger_ids(either)) == sorted(item.call_id for item in (*calls, shadow, refused))
    (session,) = stored(either)
    assert [call.call_id for call in session.calls] == [item.call_id for item in calls]
    assert (status.records, status.sessions, status.unsaved_calls, status.waiting_bytes) == (4, 1, 0, 0)
    assert status.left_out == {"shadow": 1, "refused": 1}
    told = read_status(either.spool)
    assert msgspec.structs.replace(told, at_us=status.at_us) == status
    assert not SpoolReader(either.spool).segments()
    with reading(open_engine(store_url(either.database), must_exist=True)) as connection:
        kept = recordings.read_recording(connection, calls[0].call_id, BlobStore(either.blobs))
        assert kept == calls[0]
        named = dict(connection.execute(select(tables.ledger.c.call_id, tables.ledger.c.session)).all())
        assert connection.execute(select(func.count()).select_from(recordings.recordings)).scalar() == 3
        assert not recordings.read_offsets(connection, (either.spool / "spool.id").read_text())
    assert [named[item.call_id] for item in calls] == [session.session_id] * 2


def test_a_session_that_goes_on_after_it_was_written_is_replaced_in_its_place(either):
    calls = conversation(3)
    other = conversation(1)
    for part in ([calls[0], other[0]], calls[1:2], calls[2:]):
        write(either, *part)
        drained(either)
    found = stored(either)
    assert [len(session.calls) for session in found] == [3, 1]
    assert len(ledger_ids(either)) == 4


def test_what_is_recorded_is_listed_by_the_command_line(config, capsys, monkeypatch):
    (call,) = conversation(1, session="my-session")
    write(config, call)
    drained(config)
    monkeypatch.setattr(sys, "argv", ["firstchair", "traces", "ls", "--store", config.store])
    with pytest.raises(SystemExit) as done:
        main()
    assert not done.value.code
    assert "my-session" in capsys.readouterr().out


def test_a_session_name_of_an_import_is_not_written_over(config):
    (call,) = conversation(1, session="taken")
    with TraceStore.open(config.store) as store:
        (old,) = [msgspec.structs.replace(session) for session in _any_session()]
        store.add([old], {})
    write(config, call)
    drained(config)
    assert [session.session_id for session in stored(config)] == ["taken", f"taken#{call.call_id}"]
    assert stored(config)[0] == old


def _any_session():
    from firstchair.chat.messages import text_message
    from firstchair.traces.session import Session

    return [Session(session_id="taken", messages=(text_message("user", "hello"),))]


def test_large_requests_become_blobs_and_are_found_again(tmp_path):
    config = config_in(tmp_path, blob_over=1000)
    (call,) = [record([user("x" * 2000)], said("y")[0])]
    write(config, call)
    drained(config)
    assert len(stored(config)[0].messages[0].text) == 2000
    blobs = BlobStore(config.blobs)
    engine = open_engine(store_url(config.database), must_exist=True)
    with reading(engine) as connection:
        assert recordings.read_recording(connection, call.call_id, blobs) == call
    with engine.connect() as connection, connection.begin():
        assert recordings.prune_recordings(connection, call.received_us) == (0, [])
        count, unused = recordings.prune_recordings(connection, call.received_us + 1)
    assert count == 1
    assert blobs.get(unused[0]) == call.request
    missing = record([user("x")], said("y")[0], body=b"", request_blob="0" * 64)
    write(config, missing)
    assert drained(config).left_out == {"blob": 1}


def test_old_recordings_go_and_their_ledger_rows_and_sessions_stay(tmp_path):
    config = config_in(tmp_path, blob_over=1000, keep_s=86_400.0)
    old, new = (record([user(text)], said("y")[0]) for text in ("x" * 2000, "new"))
    write(config, old, msgspec.structs.replace(new, received_us=time.time_ns() // 1000))
    drained(config)
    blob = next(path for path in config.blobs.rglob("*") if path.is_file())
    os.utime(blob, (1, 1))
    with Sink(config, readers=READERS) as sink:
        sink.step()
    engine = open_engine(store_url(config.database), must_exist=True)
    with reading(engine) as connection:
        kept = connection.execute(select(recordings.recordings.c.call_id)).scalars().all()
    engine.dispose()
    assert kept == [new.call_id]
    assert not blob.exists()
    assert sorted(ledger_ids(config)) == sorted([old.call_id, new.call_id])
    assert len(stored(config)) == 2


def test_calls_of_several_workers_are_taken_in_the_order_they_ended(tmp_path):
    config = config_in(tmp_path, batch_records=1)
    calls = conversation(6)
    for number, call in enumerate(calls):
        write(config, call, worker=f"w{number % 2}")
    drained(config)
    assert ledger_ids(config) == [call.call_id for call in calls]
    assert len(stored(config)) == 1


def test_a_call_that_began_after_the_look_is_left_for_the_next(config):
    now = [START_US]
    early, late = record([user("a")], said("x")[0], at_s=-1), record([user("b")], said("y")[0], at_s=0.5)
    wrong_clock = record([user("c")], said("z")[0], at_s=3600)
    write(config, early, late)
    write(config, wrong_clock, worker="w1")
    with Sink(config, readers=READERS, now_us=lambda: now[0]) as sink:
        assert sink.step() == 2
        assert sink.step() == 0
        now[0] += 1_000_000
        assert sink.step() == 1


def test_damage_torn_ends_and_losses_are_counted_told_and_kept(config):
    with spool_of(config, max_bytes=10**9) as spool:
        spool.append(encode_record(record([user("a")], said("x")[0])))
        spool.append(b"no record")
        spool.append(bytes(256 * 1024 * 1024 + 1))
        spool.append(b"torn")
        path = config.spool / spool.segment
    os.truncate(path, path.stat().st_size - 1)
    status = drained(config)
    assert status.lost == {"w0": {"unreadable": 1, "torn": 1, "too_large": 1}}
    assert status.records == 1
    assert all(place.startswith(f"{path}:") for place in status.damage)
    (kept,) = (config.spool / "unreadable").iterdir()
    assert kept.read_bytes() == b"no record"
    with reading(open_engine(store_url(config.database), must_exist=True)) as connection:
        assert recordings.read_losses(connection) == {
            ("w0", "unreadable"): 1,
            ("w0", "torn"): 1,
            ("w0", "too_large"): 1,
        }


def test_a_call_that_trips_the_stitcher_is_in_the_ledger_and_ends_nothing(config):
    bad, good = record([user("bad")], said("x")[0]), record([user("good")], said("y")[0])
    write(config, bad, good)

    def reader(body):
        return {"good": READERS["openai"]}[body["messages"][0]["content"]](body)

    with Sink(config, readers={"openai": reader}) as sink:
        assert sink.drain(20)
        assert sink.status().left_out == {"fault": 1}
    assert len(ledger_ids(config)) == 2
    assert len(stored(config)) == 1


def test_a_locked_a_missing_and_a_broken_database_are_waited_for(config, monkeypatch):
    monkeypatch.setattr("firstchair.traces.database.BUSY_TIMEOUT_S", 0.05)
    calls = conversation(4)
    write(config, calls[0])
    drained(config)
    write(config, calls[1])
    other = sqlite3.connect(config.database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with Sink(config, readers=READERS) as sink:
        assert not sink.drain(0.1)
        assert "another writer" in read_status(config.spool).error
        assert read_status(config.spool).waiting_bytes > 0
        other.execute("ROLLBACK")
        assert sink.drain(20)
    write(config, calls[2])
    traces = Path(config.store)
    hidden = traces.rename(traces.with_suffix(".hidden"))
    traces.write_bytes(b"this is no database, and long enough to be seen as such" * 20)
    with Sink(config, readers=READERS) as sink:
        assert not sink.drain(0.1)
        assert "no store" in sink.status().error
        traces.unlink()
        hidden.rename(traces)
        write(config, calls[3])
        assert sink.drain(20)
        assert not sink.status().error
    other.close()
    assert ledger_ids(config) == [call.call_id for call in calls]
    (session,) = stored(config)
    assert len(session.calls) == 4


def test_one_spool_has_one_sink(config):
    with Sink(config, readers=READERS), pytest.raises(ConfigError, match="another sink"):
        Sink(config, readers=READERS)
    Sink(config, readers=READERS).close()


def test_it_runs_until_it_is_told_to_stop(config):
    stop, seen = threading.Event(), threading.Event()

    def reader(body):
        seen.set()
        return READERS["openai"](body)

    with Sink(config, readers={"openai": reader}) as sink:
        thread = threading.Thread(target=sink.run, args=(stop,))
        thread.start()
        write(config, *conversation(1))
        assert seen.wait(20)
        stop.set()
        thread.join()
        assert sink.drain(20)
    assert len(stored(config)) == 1


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.gateway.recording.calls import READERS
from tests.gateway.recording.test_sink import config_in
from firstchair.gateway.sink import Sink
config = config_in(Path(sys.argv[2]), batch_records=3, max_branches=2)
sink = Sink(config, readers=READERS)
print("ready", flush=True)
while True:
    sink._wrote_at = float("-inf")
    print(sink.step(), flush=True)
"""


def test_however_often_it_is_killed_every_call_is_there_once(tmp_path):
    config = config_in(tmp_path)
    rng = random.Random(7)
    mixed = [call for group in zip(*(conversation(8) for _ in range(5)), strict=True) for call in group]
    calls = [msgspec.structs.replace(call, received_us=START_US + n * 1_000_000) for n, call in enumerate(mixed)]
    root = str(Path(__file__).parents[3])
    written = 0
    for _ in range(4):
        write(config, *calls[written : written + 10], worker=f"w{written % 3}", segment_bytes=2000)
        written += 10
        child = subprocess.Popen([sys.executable, "-c", KILLED, root, str(tmp_path)], stdout=subprocess.PIPE)
        for _ in range(rng.randrange(1, 6)):
            assert child.stdout.readline()
        threading.Event().wait(rng.random() * 0.02)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    status = drained(config)
    assert not status.lost
    assert sorted(ledger_ids(config)) == sorted(call.call_id for call in calls)
    found = stored(config)
    assert sorted(len(session.calls) for session in found) == [8] * 5
    assert sorted(call.call_id for session in found for call in session.calls) == sorted(c.call_id for c in calls)
