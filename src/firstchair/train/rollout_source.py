"""Rollouts as a source of the training loop: new weights to the engine, a batch of rollouts back.

    staleness 0     push ─ roll out ─ train ─ push ─ roll out ─ train
    staleness 1     push ─ roll out ─ push ─ train         push ─ train
                                        └─ roll out ──────────┘ └─ roll out …     (by weights one batch old)

The loop is a plain function and calls in; rollouts live on an event loop in a thread of their own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np

from firstchair.core.atomic import write_bytes, write_text
from firstchair.core.errors import IntegrityError, RunFailed
from firstchair.core.jsontext import dumps
from firstchair.data.prompt_source import PromptSource
from firstchair.engines.openmp import release_pool
from firstchair.rollout.episodes import Task
from firstchair.traces.session_file import CATALOGS_FILE
from firstchair.train.examples import Example
from firstchair.train.sources import Feed

Result = TypeVar("Result")
Batch = tuple[Feed, list[dict[str, Any]]]
"""What the loop is fed, and a line about each rollout in it. Under ``SESSION`` is its conversation and under
``CATALOG``, once in a batch for each, the tools that it had on offer (``CatalogLine``)."""

SESSION, CATALOG = "session", "catalog"


class Batches(Protocol):
    """Makes one batch of rollouts."""

    async def make(self, cursor: int) -> Batch:
        """The batch whose first prompt is the one at ``cursor``."""
        ...


class PolicyPush(Protocol):
    """Brings the trainer's weights to the engine that samples."""

    def expected(self) -> list[tuple[float, ...]]:
        """What the trainer says of the probe's ids, in nats; called in the trainer's thread."""
        ...

    async def push(self, expected: Sequence[Sequence[float]]) -> str:
        """Push, and prove that the engine answers with these weights; returns their revision."""
        ...


class LoopThread:
    """An event loop in a thread of its own; leaving the block cancels and awaits all that still runs on it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="firstchair-rollouts", daemon=True)

    def __enter__(self) -> LoopThread:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.call(_cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Begin ``work`` there."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """What ``work`` returns or raises."""
        return wait(self.start(work))


def wait(future: Future[Result]) -> Result:
    """The result, without holding threads that others could compute with; cancelled when this one is interrupted."""
    release_pool()
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


@dataclass(frozen=True, slots=True)
class Course:
    """How many batches, how they are used, and where they are noted."""

    batches: int
    steps_per_batch: int
    rollouts_per_batch: int
    prompts: PromptSource[Task]
    """What the batches are of."""
    staleness: int
    """1: the next batch is rolled out while one is trained on."""
    patience: int
    """Batches in a row without a group to learn from after which the run fails."""
    log: Path
    """A line for every rollout."""
    sessions: Path
    """Its conversation, labelled with batch, group, sample and reward."""


class RolloutSource:
    """Feeds the training loop with batches of rollouts."""

    unit = "rollouts"

    def __init__(
        self,
        batches: Batches,
        weights: PolicyPush,
        thread: LoopThread,
        course: Course,
    ):
        self.total_steps = course.batches * course.steps_per_batch
        self.total_work = course.batches * course.rollouts_per_batch
        self._batches, self._weights, self._thread, self._course = batches, weights, thread, course
        self._made, self._flat, self._cursor = 0, 0, 0
        self._served: str | None = None
        """The revision that was pushed last; ``None``: none yet."""
        self._pending: Future[Batch] | None = None
        self._ready: Batch | None = None
        """What a checkpoint had rolled out ahead."""

    def epoch(self, cursor: int) -> float:
        """Prompts played / prompts."""
        return self._course.prompts.epoch(cursor)

    def feed(self, cursor: int) -> Feed:
        """The next batch.

        Raises ``RunFailed`` when other weights sampled it than should have, and after too many batches in a row with
        nothing to learn from.
        """
        if self._ready is None and self._pending is None:
            self._push()
            self._pending = self._thread.start(self._batches.make(cursor))
        feed, lines = self._ahead()
        self._ready = self._pending = None
        self._check_weights(lines)
        self._made, self._cursor = self._made + 1, feed.cursor
        self._flat = 0 if any(feed.steps) else self._flat + 1
        if self._flat >= self._course.patience:
            raise RunFailed(
                f"{self._flat} batches in a row had no group with different rewards: the tasks are all solved or all "
                "failed; choose others, or a reward that tells more apart"
            )
        if self._course.staleness and self._made < self._course.batches:
            self._push()
            self._pending = self._thread.start(self._batches.make(feed.cursor))
        self._note(lines)
        return feed

    def _note(self, lines: Sequence[Mapping[str, Any]]) -> None:
        # What was played before the first checkpoint is played again after a kill, and must not stand there twice.
        mode = "w" if self._made == 1 else "a"
        try:
            with (
                self._course.log.open(mode, encoding="utf-8") as log,
                self._course.sessions.open(mode, encoding="utf-8") as sessions,
            ):
                for line in lines:
                    about = {name: value for name, value in line.items() if name not in (SESSION, CATALOG)}
                    log.write(dumps(about) + "\n")
                    sessions.write(dumps(line[SESSION]) + "\n")
                    self._note_catalog(line.get(CATALOG))
        except OSError as error:
            raise RunFailed(f"cannot write {self._course.log}: {error.strerror}; free space and resume") from error

    def _note_catalog(self, catalog: Mapping[str, Any] | None) -> None:
        """Add a tool list to ``catalogs.jsonl`` beside the sessions, unless it stands there."""
        if catalog is None:
            return
        path = self._course.sessions.with_name(CATALOGS_FILE)
        line = dumps(dict(catalog)) + "\n"
        known = path.read_text(encoding="utf-8") if path.is_file() else ""
        if line not in known:
            write_text(path, known + line, force=True)

    def _push(self) -> None:
        expected = self._weights.expected()
        self._served = self._thread.call(self._weights.push(expected))

    def _check_weights(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Every batch was begun after the last push."""
        if self._served is None:  # it came out of a checkpoint
            return
        for line in lines:
            odd = set(line["weights"]) - {self._served}
            if odd:
                raise RunFailed(
                    f"rollout {line['task_id']}#{line['sample']} was sampled by weights {sorted(odd)[0][:12]}; "
                    f"expected {self._served[:12]}, the newest that the engine was given before it began"
                )

    def _ahead(self) -> Batch:
        if self._ready is not None:
            return self._ready
        assert self._pending is not None
        return wait(self._pending)

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def state(self) -> bytes:
        """How many batches were made, of which prompts, and the one that was rolled out ahead: it is waited for.

        What fails ahead does not take the step before it along: that is saved, and ``feed`` raises the reason.
        """
        ahead = None
        if self._ready is not None or self._pending is not None:
            with suppress(Exception):
                ahead = _packed(self._ahead())
        prompts = self._course.prompts.state(self._cursor)
        return msgspec.msgpack.encode({"made": self._made, "flat": self._flat, "prompts": prompts, "ahead": ahead})

    def restore(self, state: bytes) -> None:
        """Go on after the batches that were trained on; the log loses the lines of those that were not."""
        try:
            found = msgspec.msgpack.decode(state)
            if "prompts" in found:  # older checkpoints do not say
                self._cursor = self._course.prompts.resume(found["prompts"])
            self._made, self._flat = int(found["made"]), int(found["flat"])
            self._ready = None if found["ahead"] is None else _unpacked(found["ahead"])
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            raise IntegrityError(f"its source is not one of rollouts: {error!r}; start anew") from None
        if self._course.log.is_file():
            kept = _first_batches(self._course.log.read_bytes(), self._made)
            write_bytes(self._course.log, b"".join(line + b"\n" for line in kept), force=True)
            # Both files have a line for each rollout of a batch that was trained on.
            sessions = self._course.sessions.read_bytes().split(b"\n")[: len(kept)]
            write_bytes(self._course.sessions, b"".join(line + b"\n" for line in sessions), force=True)


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _first_batches(raw: bytes, count: int) -> list[bytes]:
    """The lines of the first ``count`` batches; a line that a crash cut is left out."""
    kept: list[bytes] = []
    seen: list[int] = []
    for line in raw.split(b"\n")[:-1]:
        batch = msgspec.json.decode(line)["batch"]
        if not seen or seen[-1] != batch:
            seen.append(batch)
        if len(seen) > count:
            break
        kept.append(line)
    return kept


def _packed(batch: Batch) -> dict[str, Any]:
    feed, lines = batch
    steps = [[_packed_example(example) for example in step] for step in feed.steps]
    return {"steps": steps, "cursor": feed.cursor, "metrics": dict(feed.metrics), "work": feed.work, "lines": lines}


def _packed_example(example: Example) -> dict[str, Any]:
    return {
        "ids": example.ids.tobytes(),
        "mask": example.loss_mask.tobytes(),
        "columns": {name: values.tobytes() for name, values in example.columns.items()},
        "key": example.key,
        "group": example.group,
    }


def _unpacked(saved: Mapping[str, Any]) -> Batch:
    steps = [[_unpacked_example(example) for example in step] for step in saved["steps"]]
    return Feed(steps, saved["cursor"], saved["metrics"], saved["work"]), list(saved["lines"])


def _unpacked_example(saved: Mapping[str, Any]) -> Example:
    return Example(
        ids=np.frombuffer(saved["ids"], np.int32),
        loss_mask=np.frombuffer(saved["mask"], np.bool_),
        columns={name: np.frombuffer(values, np.float32) for name, values in saved["columns"].items()},
        key=saved["key"],
        group=saved["group"],
    )
