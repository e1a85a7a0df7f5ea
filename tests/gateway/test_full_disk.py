"""A full disk under each thing that the gateway writes: calls go on, losses are counted, and space heals it."""

import os
import random
import signal
import subprocess
import time

import pytest
from tests.gateway.test_serve import WAIT_S, served
from tests.services import full, small_disk

from firstchair.core.errors import RunFailed
from firstchair.gateway.control.keys import KeyLimits
from firstchair.gateway.control.store import ControlStore
from firstchair.gateway.sink import read_status
from firstchair.gateway.spool import SpoolWriter, losses_of
from firstchair.traces.store import TraceStore

DISK_MB = 16
CALLS = 8
LARGE = 400_000
"""Characters of a prompt that do not compress; more than the 256 KiB from which a request becomes a blob."""


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", DISK_MB) as folder:
        yield folder


def ask_large(gateway, **more):
    text = random.randbytes(LARGE // 2).hex()
    return gateway.ask(messages=[{"role": "user", "content": text}], **more)


def wait_until(true, gateway):
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, gateway.lines[-20:]
        time.sleep(0.05)


def calls_in_sessions(path):
    with TraceStore.open(path, must_exist=True) as store:
        return sorted(call.call_id for session in store.sessions() for call in session.calls)


@pytest.mark.parametrize("under", ["database", "traces", "blobs"])
def test_what_the_sink_cannot_write_waits_in_the_spool_and_is_whole_once_space_is_back(
    tmp_path, disk, upstream, under
):
    folder = disk if under == "database" else tmp_path
    recording = {"store": str((disk if under == "traces" else tmp_path) / "traces.db"), "idle_s": 0.05}
    if under == "blobs":
        recording["blobs"] = str(disk / "blobs")
    spool = tmp_path / "spool"

    def status():
        return read_status(spool)

    with served(folder, upstream, spool=str(spool), recording=recording) as gateway:
        ids = [gateway.ask().headers["request-id"]]
        wait_until(lambda: status() is not None and status().sessions == 1, gateway)
        with full(disk):
            answers = [ask_large(gateway) for _ in range(CALLS)]
            assert [answer.status_code for answer in answers] == [200] * CALLS
            ids += [answer.headers["request-id"] for answer in answers]
            wait_until(lambda: status().error, gateway)
            assert "full" in status().error or "No space left" in status().error
        wait_until(lambda: not status().error, gateway)
        ids.append(gateway.ask().headers["request-id"])
        gateway.stop()
        assert sorted(row[0] for row in gateway.ledger_rows()) == sorted(ids)
        assert status().lost == {}
        assert losses_of(spool) == []
    assert calls_in_sessions(recording["store"]) == sorted(ids)


def test_what_a_full_spool_lost_is_counted_to_the_call_and_a_worker_that_dies_meanwhile_comes_back(
    tmp_path, disk, upstream
):
    spool = disk / "spool"
    with served(tmp_path, upstream, spool=str(spool)) as gateway:
        assert gateway.ask().status_code == 200  # the sink may never have written anything when the disk is full
        with full(disk):
            statuses = [ask_large(gateway).status_code for _ in range(CALLS)]
            kill_children(gateway)
            statuses += [ask_large(gateway).status_code for _ in range(CALLS)]
            assert statuses == [200] * 2 * CALLS
        assert gateway.ask().status_code == 200
        gateway.stop()
        rows, (losses,) = gateway.ledger_rows(), losses_of(spool)
        assert list(losses.lost) == ["disk_full"]
        assert len(rows) + losses.lost["disk_full"] == 2 + 2 * CALLS
        assert losses.lost["disk_full"] > 0
        assert read_status(spool).lost == {losses.worker: losses.lost}


def test_a_first_start_on_a_full_disk_is_refused(disk):
    spool = disk / "spool"
    spool.mkdir()
    with full(disk), pytest.raises(RunFailed, match="No space left on device; free space or choose another path"):
        SpoolWriter(spool, "w0")


def kill_children(gateway):
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(gateway.process.pid)], capture_output=True, text=True, check=True
    )
    for pid in map(int, children.stdout.split()):
        os.kill(pid, signal.SIGKILL)
    gateway.event("restarting")


@pytest.mark.parametrize(("policy", "expected"), [("refuse", 500), ("allow", 200)])
def test_a_key_with_a_budget_goes_by_its_policy_while_the_databases_disk_is_full(
    tmp_path, disk, upstream, policy, expected
):
    with served(disk, upstream, spool=str(tmp_path / "spool"), auth={"on_unreadable_budget": policy}) as gateway:
        assert gateway.ask().status_code == 200
        with ControlStore.open(disk / "gateway.db", must_exist=True) as store:
            new = store.create_key("rich", limits=KeyLimits(budget_nano=10**12), who="test")
            assert store.wait_for_workers(store.revision(), WAIT_S) == ()
        rich = {"x-api-key": new.secret}
        with full(disk):
            answers = [gateway.ask(headers=rich) for _ in range(3)]
            kill_children(gateway)
            answers += [gateway.ask(headers=rich), gateway.ask()]
        assert [answer.status_code for answer in answers] == [expected] * 4 + [200]
        assert gateway.ask(headers=rich).status_code == 200
        gateway.stop()
        with ControlStore.open(disk / "gateway.db", must_exist=True) as store:
            spend = store.spend(new.key.key_id)
        assert spend.reserved_nano == 0
        assert spend.spent_nano >= 0
        assert len(gateway.ledger_rows()) == len(answers) + 2
