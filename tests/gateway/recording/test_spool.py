import os
import signal
import subprocess
import sys
import threading

import pytest

from firstchair.core.errors import ConfigError
from firstchair.gateway.spool import HEAD_SIZE, BadFrame, Frame, SpoolReader, SpoolWriter, losses_of, segments_of

FRAME = 16


def read(directory, offsets=None):
    """Every record and every fault after ``offsets``, which are moved on."""
    offsets = {} if offsets is None else offsets
    records, faults = [], []
    for found in SpoolReader(directory).records(offsets):
        offsets[found.segment] = found.end
        records.append(found.data) if isinstance(found, Frame) else faults.append(found)
    return records, faults


def test_records_come_back_in_order_and_only_after_the_offset(tmp_path):
    records = [b"one", b"", b"x" * 70_000, bytes(range(256))]
    offsets = {}
    with SpoolWriter(tmp_path, "w0") as spool:
        assert all(spool.append(record) for record in records)
        assert read(tmp_path, offsets) == (records, [])
        assert read(tmp_path, offsets) == ([], [])
        spool.append(b"later")
        assert SpoolReader(tmp_path).waiting_bytes(offsets) == FRAME + len(b"later")
        assert read(tmp_path, offsets) == ([b"later"], [])
    assert SpoolReader(tmp_path / "none").segments() == []


def test_segments_rotate_by_size_and_go_when_they_are_read_and_left(tmp_path):
    spool = SpoolWriter(tmp_path, "w0", segment_bytes=100)
    records = [b"a" * 40, b"b" * 40, b"c" * 400, b"d"]
    for record in records:
        spool.append(record)
    assert len(segments_of(tmp_path)) == 4
    offsets = {}
    reader = SpoolReader(tmp_path)
    assert reader.delete_read(offsets) == []
    assert read(tmp_path, offsets)[0] == records
    assert len(reader.delete_read(offsets)) == 3
    assert [segment.name for segment in reader.segments()] == [spool.segment], "its writer lives"
    spool.close()
    assert reader.delete_read(offsets) == [spool.segment]


def test_workers_have_streams_of_their_own_and_a_name_never_returns(tmp_path):
    names = set()
    for _ in range(3):
        with SpoolWriter(tmp_path, "w0") as first, SpoolWriter(tmp_path, "w1") as second:
            first.append(b"0")
            second.append(b"1")
            names |= {first.segment, second.segment}
        streams = SpoolReader(tmp_path).streams({})
        assert sorted(b"".join(f.data for f in stream) for stream in streams) == [b"0", b"1"]
        SpoolReader(tmp_path).delete_read({segment.name: segment.size for segment in segments_of(tmp_path)})
    assert len(names) == 6
    assert not segments_of(tmp_path)


def test_a_torn_tail_waits_while_its_writer_lives_and_is_told_afterwards(tmp_path):
    spool = SpoolWriter(tmp_path, "w0")
    spool.append(b"whole")
    path = tmp_path / spool.segment
    whole = path.stat().st_size
    spool.append(b"x" * 100)
    os.truncate(path, whole + 50)
    assert read(tmp_path) == ([b"whole"], [])
    spool.close()
    records, (fault,) = read(tmp_path)
    assert records == [b"whole"]
    assert fault.torn
    assert fault.reason.startswith(f"{path}:{whole}: ")
    for left in reversed(range(whole, whole + 50)):
        os.truncate(path, left)
        assert [fault.torn for fault in read(tmp_path)[1]] == ([True] if left > whole else [])


def test_damage_is_told_with_its_place_and_what_follows_is_read(tmp_path):
    with SpoolWriter(tmp_path, "w0") as spool:
        for record in (b"first", b"second", b"third"):
            spool.append(record)
    path = tmp_path / spool.segment
    data = bytearray(path.read_bytes())
    second = HEAD_SIZE + FRAME + 5
    data[second + FRAME + 2] ^= 1
    path.write_bytes(data)
    records, (fault,) = read(tmp_path)
    assert records == [b"first", b"third"]
    assert (fault.offset, fault.end, fault.torn) == (second, second + FRAME + 6, False)
    assert f"{path}:{second}" in fault.reason
    path.write_bytes(b"\0" * 100)
    assert [fault.torn for fault in read(tmp_path)[1]] == [False]


def test_a_record_that_looks_like_a_frame_is_never_read_as_one(tmp_path):
    with SpoolWriter(tmp_path, "w0") as spool:
        spool.append(b"forged")
    inner = (tmp_path / spool.segment).read_bytes()
    other = tmp_path / "other"
    with SpoolWriter(other, "w0") as spool:
        spool.append(inner * 3)
        path = other / spool.segment
    os.truncate(path, path.stat().st_size - 1)
    records, (fault,) = read(other)
    assert not records
    assert fault.torn


def test_at_the_size_limit_records_are_lost_counted_and_room_is_found_again(tmp_path):
    with SpoolWriter(tmp_path, "w0", max_bytes=400, segment_bytes=100) as spool:
        kept = [spool.append(b"x" * 60) for _ in range(6)]
        assert kept.count(False) == spool.lost["cap"] > 0
        (losses,) = losses_of(tmp_path)
        assert losses.lost == {"cap": kept.count(False)}
        assert 0 < losses.first_us <= losses.last_us
        offsets = {}
        read(tmp_path, offsets)
        SpoolReader(tmp_path).delete_read(offsets)
        spool._counted_at = 0.0
        assert spool.append(b"y")
    with SpoolWriter(tmp_path, "w0") as spool:
        assert spool.lost == losses.lost, "a worker that starts again goes on counting"
        assert not spool.append(bytes(256 * 1024 * 1024 + 1))
    assert not spool.append(b"late")
    assert losses_of(tmp_path)[0].lost == {**losses.lost, "too_large": 1, "closed": 1}


FULL = """
import resource, signal, sys
from pathlib import Path
from firstchair.gateway.spool import SpoolReader, SpoolWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
spool = SpoolWriter(Path(sys.argv[1]), "w0")
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
kept = [spool.append(bytes([65 + n]) * 3000) for n in range(3)]
reader = SpoolReader(Path(sys.argv[1]))
ends = {segment.name: segment.size for segment in reader.segments()}
deletable = len(reader.delete_read(ends)) if "read" in sys.argv else 0
kept += [spool.append(bytes([68 + n]) * 3000) for n in range(2)]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
kept.append(spool.append(b"after"))
print(kept, deletable, dict(spool.lost))
"""


def test_a_write_that_the_disk_takes_in_part_is_taken_back(tmp_path):
    """A file-size limit of the kernel refuses in the middle of a write, as a full disk does."""
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[True, True, False, True, True, True] 0 {'disk_full': 1}"
    records, faults = read(tmp_path)
    assert records == [b"A" * 3000, b"B" * 3000, b"D" * 3000, b"E" * 3000, b"after"]
    assert not faults
    assert losses_of(tmp_path)[0].lost == {"disk_full": 1}


def test_what_fills_the_disk_can_be_deleted_once_it_is_read_while_its_writer_lives(tmp_path):
    """Else a spool alone on a small disk would stay full until its worker ends."""
    command = [sys.executable, "-c", FULL, str(tmp_path), "read"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[True, True, False, True, True, True] 1 {'disk_full': 1}"
    assert read(tmp_path)[0] == [b"D" * 3000, b"E" * 3000, b"after"]


@pytest.mark.parametrize("policy", ["never", "interval", "always"])
def test_every_policy_of_syncing_keeps_the_records(tmp_path, policy):
    with SpoolWriter(tmp_path, "w0", fsync=policy, fsync_interval_s=0.001, segment_bytes=50) as spool:
        for number in range(5):
            spool.append(b"%d" % number * 20)
        spool.sync()
    assert len(read(tmp_path)[0]) == 5


def test_threads_may_share_a_writer(tmp_path):
    with SpoolWriter(tmp_path, "w0", segment_bytes=500) as spool:
        threads = [
            threading.Thread(target=lambda n=n: [spool.append(b"%d" % n) for _ in range(50)]) for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    records, faults = read(tmp_path)
    assert sorted(records) == sorted(b"%d" % n for n in range(4) for _ in range(50))
    assert not faults


@pytest.mark.parametrize("name", ["", "a b", "../x", "a/b", "a.b", "x" * 65])
def test_a_worker_name_is_no_path(tmp_path, name):
    with pytest.raises(ConfigError, match="worker"):
        SpoolWriter(tmp_path, name)


KILLED = """
import os, sys
from pathlib import Path
from firstchair.gateway.spool import SpoolWriter
spool = SpoolWriter(Path(sys.argv[1]), "w0", segment_bytes=3_000_000)
number = 0
while True:
    assert spool.append(number.to_bytes(8, "big") + os.urandom(1) * (number * 7919 % 900_000))
    os.write(1, number.to_bytes(8, "big"))
    number += 1
"""


def test_what_was_appended_survives_a_kill_in_the_middle_of_the_next(tmp_path):
    for life in range(3):
        directory = tmp_path / str(life)
        child = subprocess.Popen([sys.executable, "-c", KILLED, str(directory)], stdout=subprocess.PIPE)
        acknowledged = child.stdout.read(8 * (8 + 5 * life))
        child.send_signal(signal.SIGKILL)
        acknowledged += child.stdout.read()
        child.wait()
        child.stdout.close()
        records, faults = read(directory)
        numbers = [int.from_bytes(record[:8], "big") for record in records]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= len(acknowledged) // 8
        assert all(isinstance(fault, BadFrame) and fault.torn for fault in faults)
        assert len(faults) <= 1
