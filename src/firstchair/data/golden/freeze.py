"""Freezing a draft into a scoreboard, and checking a frozen one again.

Freezing refuses what would make scores lie: an unverified catalog, a decision without gold or with gold that the tool
itself would refuse, near-duplicate sessions, overlap with training data, and gold that fails against itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from firstchair.catalog.catalog import Catalog
from firstchair.core.errors import ConfigError, DataError
from firstchair.core.jsontext import content_id
from firstchair.data.golden.checks import Scorer, gold_problems, self_check, uncovered_tools
from firstchair.data.golden.golden_set import CatalogRow, GoldenSet
from firstchair.data.golden.write import write_set
from firstchair.data.similarity import THRESHOLD, Pair, Shingles, text_shingles


@dataclass(frozen=True)
class TrainingData:
    """One body of training data that the set must not overlap with."""

    name: str
    sets: Sequence[tuple[str, Shingles]]
    """Id and shingles of each session."""


@dataclass(frozen=True)
class FreezeOptions:
    """What a draft is frozen under."""

    catalog: Catalog
    scorer: Scorer
    created_at: str
    """ISO 8601, UTC."""
    threshold: float = THRESHOLD
    against: Sequence[TrainingData] = field(default=())


def freeze(draft: Path, out: Path, options: FreezeOptions) -> GoldenSet:
    """Write the draft as a frozen set to the directory ``out``, which must not exist.

    Raises ``ConfigError`` for an unverified catalog or an existing directory, and ``DataError`` that lists what is
    wrong with the draft. Nothing is written then.
    """
    refuse_existing_always(out)
    golden = GoldenSet.load(draft, draft=True)
    if not options.catalog.verified:
        raise ConfigError(
            f"catalog {options.catalog.name!r} is not verified; read it, set `verified: true` in its YAML, and "
            "freeze again"
        )
    golden = GoldenSet(
        manifest=golden.manifest,
        sessions=golden.sessions,
        decisions=golden.decisions,
        catalogs={key: _under(options.catalog, row) for key, row in golden.catalogs.items()},
    )
    _refuse("the catalog does not cover the recordings", draft, uncovered_tools(golden, options.catalog))
    _refuse("gold is missing or cannot stand", draft, gold_problems(golden))
    own = [(session_id, text_shingles(session)) for session_id, session in golden.sessions.items()]
    _refuse("sessions are near-duplicates (rebuild with --dedup)", draft, _pair_lines(_duplicates(own, options)))
    leakage = _leakage(own, draft, options)
    _refuse("gold does not pass against itself", draft, self_check(golden, options.scorer))
    manifest = msgspec.structs.replace(
        golden.manifest,
        status="frozen",
        created_at=options.created_at,
        catalog={
            "name": options.catalog.name,
            "sha256": content_id(options.catalog.model_dump(mode="json")),
            "verified": options.catalog.verified,
        },
        dedup={**golden.manifest.dedup, "threshold": options.threshold, "compared": len(own), "pairs": 0},
        leakage=leakage,
    )
    write_set(GoldenSet(manifest, golden.sessions, golden.decisions, golden.catalogs), out)
    return GoldenSet.load(out)


def refuse_existing_always(out: Path) -> None:
    """A frozen set is never replaced: runs refer to it by its hash."""
    if out.exists():
        raise ConfigError(f"{out} exists; a frozen set is never replaced; choose another directory")


def _under(catalog: Catalog, row: CatalogRow) -> CatalogRow:
    known = [found for tool in row.tools if (found := catalog.tool(tool.name)) is not None]
    return CatalogRow(
        catalog_id=row.catalog_id,
        tools=row.tools,
        matchers={tool.name: dict(tool.matchers) for tool in known if tool.matchers},
        kinds={tool.name: tool.kind for tool in known},
        read_only=tuple(tool.name for tool in known if tool.read_only),
    )


def _duplicates(own: Sequence[tuple[str, Shingles]], options: FreezeOptions) -> list[Pair]:
    from firstchair.data.near_duplicates import near_duplicates

    return near_duplicates(own, options.threshold)


def _leakage(own: Sequence[tuple[str, Shingles]], draft: Path, options: FreezeOptions) -> dict[str, Any]:
    from firstchair.data.near_duplicates import leaks

    if not options.against:
        return {}
    rows: list[dict[str, Any]] = []
    for data in options.against:
        found = leaks(data.sets, own, options.threshold)
        _refuse(f"sessions leak from {data.name}", draft, _pair_lines(found))
        rows.append({"name": data.name, "sessions": len(data.sets), "pairs": 0})
    return {"threshold": options.threshold, "against": rows}


def _pair_lines(pairs: Sequence[Pair]) -> Iterator[str]:
    for pair in pairs:
        yield f"{pair.left} and {pair.right}: similarity {pair.similarity:.2f}"


def _refuse(what: str, draft: Path, problems: Iterator[str], shown: int = 10) -> None:
    found = list(problems)
    if found:
        more = f"\n  … and {len(found) - shown} more" if len(found) > shown else ""
        lines = "".join(f"\n  {line}" for line in found[:shown])
        raise DataError(f"cannot freeze: {what} ({len(found)}):{lines}{more}", path=str(draft))


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """One check of ``verify``."""

    name: str
    problems: tuple[str, ...] = ()


def verify(path: Path, scorer: Scorer) -> tuple[GoldenSet, tuple[Checked, ...]]:
    """Check a frozen set again, from its bytes up.

    Checksums come first and raise ``IntegrityError``; the rest is reported: each record is the one text of its
    session and gold, the decisions are those of the sessions, the counts are right, the corrections stand, no two
    sessions are alike, and gold passes against itself.
    """
    from firstchair.data.golden.consistency import (
        correction_problems,
        count_problems,
        decision_problems,
        text_problems,
    )

    golden = GoldenSet.load(path)
    own = [(session_id, text_shingles(session)) for session_id, session in golden.sessions.items()]
    threshold = float(golden.manifest.dedup.get("threshold", THRESHOLD))
    from firstchair.data.near_duplicates import near_duplicates

    checks: Mapping[str, Iterator[str]] = {
        "records": text_problems(golden),
        "decisions": decision_problems(golden),
        "counts": count_problems(golden),
        "corrections": correction_problems(golden),
        "gold": gold_problems(golden),
        "near-duplicates": _pair_lines(near_duplicates(own, threshold)),
        "self-check": self_check(golden, scorer),
    }
    return golden, tuple(Checked(name=name, problems=tuple(found)) for name, found in checks.items())
