"""Checking a frozen set again, from its bytes up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from firstchair.data.golden.checks import Scorer, gold_problems, self_check
from firstchair.data.golden.consistency import correction_problems, count_problems, decision_problems, text_problems
from firstchair.data.golden.freeze import pair_lines
from firstchair.data.golden.golden_set import GoldenSet
from firstchair.data.similarity import THRESHOLD, text_shingles


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """One check of ``verify``."""

    name: str
    problems: tuple[str, ...] = ()


def verify(path: Path, scorer: Scorer) -> tuple[GoldenSet, tuple[Checked, ...]]:
    """Check a frozen set again.

    Checksums come first and raise ``IntegrityError``; the rest is reported: each record is the one text of its
    session and gold, the decisions are those of the sessions, the counts are right, the corrections stand, no two
    sessions are alike, and gold passes against itself.
    """
    from firstchair.data.near_duplicates import near_duplicates  # LSH is slow to import

    golden = GoldenSet.load(path)
    own = [(session_id, text_shingles(session)) for session_id, session in golden.sessions.items()]
    threshold = float(golden.manifest.dedup.get("threshold", THRESHOLD))
    checks: Mapping[str, Iterator[str]] = {
        "records": text_problems(golden),
        "decisions": decision_problems(golden),
        "counts": count_problems(golden),
        "corrections": correction_problems(golden),
        "gold": gold_problems(golden),
        "near-duplicates": pair_lines(near_duplicates(own, threshold)),
        "self-check": self_check(golden, scorer),
    }
    return golden, tuple(Checked(name=name, problems=tuple(found)) for name, found in checks.items())
