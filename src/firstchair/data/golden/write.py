"""Writing a golden set: the two data files, then the manifest that locks them; the directory appears whole."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from firstchair.core.atomic import atomic_dir
from firstchair.data.golden.golden_set import GoldenSet, catalog_lines, session_lines
from firstchair.data.golden.manifest import CATALOGS, MANIFEST, SESSIONS, Counts, render
from firstchair.traces.decisions import DecisionPoint

NO_GOLD = "(no gold)"
FINAL_REPLY = "final_reply"


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the set at ``path`` (where there is one) from reading it until it is replaced.

    Another who changes the set waits and then reads the new one, so that of two reviewers at once neither is lost.
    """
    manifest = path / MANIFEST
    while manifest.is_file():
        with manifest.open("r+b" if os.access(manifest, os.W_OK) else "rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            # Replaced while this one waited: the lock is then on a file that is gone, and the new one is free.
            if manifest.is_file() and os.path.samestat(os.fstat(held.fileno()), manifest.stat()):
                yield
                return
    yield


def write_set(golden: GoldenSet, path: Path, *, force: bool = False) -> GoldenSet:
    """Write ``golden`` to the directory ``path`` and read it back.

    Counts, checksums and hashes of the manifest are computed here; equal input gives equal bytes. Raises
    ``ConfigError`` when ``path`` exists without ``force``.
    """
    with atomic_dir(path, force=force) as directory:
        files = {
            CATALOGS: _write(directory / CATALOGS, catalog_lines(golden)),
            SESSIONS: _write(directory / SESSIONS, session_lines(golden)),
        }
        manifest = msgspec.structs.replace(golden.manifest, counts=counts_of(golden), files=files)
        (directory / MANIFEST).write_text(render(manifest), encoding="utf-8", newline="\n")
    return GoldenSet.load(path, draft=True)


def counts_of(golden: GoldenSet) -> Counts:
    """What the set holds, counted."""
    return Counts(
        sessions=len(golden.sessions),
        turns=sum(len(session.turns) for session in golden.sessions.values()),
        decision_points=len(golden.decisions),
        per_tool=_sorted_counts(tool_of(decision) for decision in golden.decisions),
        per_provenance=_sorted_counts(decision.provenance for decision in golden.decisions),
    )


def tool_of(decision: DecisionPoint) -> str:
    """Under which name a decision is counted: gold's first tool, ``final_reply``, or ``(no gold)``."""
    if decision.gold is None:
        return NO_GOLD
    return decision.gold.calls[0].name if decision.gold.calls else FINAL_REPLY


def _sorted_counts(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def _write(path: Path, lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    with path.open("wb") as out:
        for line in lines:
            raw = line.encode("utf-8")
            digest.update(raw)
            out.write(raw)
    return digest.hexdigest()
