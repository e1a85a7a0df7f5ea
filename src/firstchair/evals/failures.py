"""The failure map: what goes wrong together, largest first. It is where the next data should aim."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from firstchair.catalog.verdict import Verdict
from firstchair.evals.metrics import Level, undecided
from firstchair.evals.routing import gold_label, made_label
from firstchair.evals.run_record import DecisionRow


class Cluster(msgspec.Struct, frozen=True):
    """Failures of one verdict at one tool and one field (or of one wrong route)."""

    verdict: str
    tool: str
    """Gold's route."""
    field: str
    """The field that differs, the rule for a malformed reply, or ``→ route`` for a wrong one."""
    count: int
    share: float
    """Of all failures."""
    sessions: int
    undecided: int
    """How many of them code alone cannot call wrong."""
    dp_ids: tuple[str, ...]


def failure_map(rows: Sequence[DecisionRow], level: Level = "lenient") -> list[Cluster]:
    """Clusters verdict × tool × field of every failure at ``level``, largest first. Errors are not failures."""
    groups: dict[tuple[str, str, str], list[DecisionRow]] = {}
    total = 0
    for row in rows:
        verdict: Verdict = getattr(row.scored, level)
        if verdict in (Verdict.PASS, Verdict.ERROR):
            continue
        total += 1
        groups.setdefault((str(verdict), gold_label(row), _field(row, verdict)), []).append(row)
    clusters = [
        Cluster(
            verdict=verdict,
            tool=tool,
            field=field,
            count=len(group),
            share=len(group) / total,
            sessions=len({row.session_id for row in group}),
            undecided=sum(undecided(row) for row in group),
            dp_ids=tuple(row.dp_id for row in group),
        )
        for (verdict, tool, field), group in groups.items()
    ]
    return sorted(clusters, key=lambda cluster: (-cluster.count, cluster.verdict, cluster.tool, cluster.field))


def _field(row: DecisionRow, verdict: Verdict) -> str:
    if verdict in (Verdict.WRONG_TOOL, Verdict.FAILED_TO_STOP, Verdict.PREMATURE_STOP):
        return f"→ {made_label(row)}"
    if verdict is Verdict.MALFORMED and row.scored.rule != "schema_violation":
        return row.scored.rule
    field = row.scored.field
    return re.sub(r"\[\d+\]", "[]", field) if field else row.scored.rule
