"""Freezing a draft into a scoreboard.

Freezing refuses what would make scores lie: an unverified catalog, a decision without gold or with gold that the tool
itself would refuse, near-duplicate sessions, overlap with training data, and gold that fails against itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    from firstchair.data.near_duplicates import near_duplicates  # LSH is slow to import

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
    _refuse(
        "sessions are near-duplicates (rebuild with --dedup)",
        draft,
        pair_lines(near_duplicates(own, options.threshold)),
    )
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
        extra_read_only=catalog.extra_read_only,
        tool_names=catalog.tool_names,
    )


def _leakage(own: Sequence[tuple[str, Shingles]], draft: Path, options: FreezeOptions) -> dict[str, Any]:
    from firstchair.data.near_duplicates import leaks

    if not options.against:
        return {}
    rows: list[dict[str, Any]] = []
    for data in options.against:
        found = leaks(data.sets, own, options.threshold)
        _refuse(f"sessions leak from {data.name}", draft, pair_lines(found))
        rows.append({"name": data.name, "sessions": len(data.sets), "pairs": 0})
    return {"threshold": options.threshold, "against": rows}


def pair_lines(pairs: Sequence[Pair]) -> Iterator[str]:
    """Pairs that are alike, in words."""
    for pair in pairs:
        yield f"{pair.left} and {pair.right}: similarity {pair.similarity:.2f}"


def _refuse(what: str, draft: Path, problems: Iterator[str], shown: int = 10) -> None:
    found = list(problems)
    if found:
        more = f"\n  … and {len(found) - shown} more" if len(found) > shown else ""
        lines = "".join(f"\n  {line}" for line in found[:shown])
        raise DataError(f"cannot freeze: {what} ({len(found)}):{lines}{more}", path=str(draft))
