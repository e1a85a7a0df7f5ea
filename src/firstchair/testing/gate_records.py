"""Records of the gates without a model: what ``firstchair gates check`` would write, for tests of what reads them."""

from __future__ import annotations

from typing import Any

import msgspec

from firstchair import __version__
from firstchair.core.jsontext import content_id
from firstchair.evals.gate_record import (
    GATES,
    SCHEMA_VERSION,
    Check,
    Gate,
    GateRecord,
    GateVerdict,
    GoldenUsed,
    Scored,
    sealed,
    verdict_of,
)
from firstchair.evals.gate_thresholds import Thresholds


def gate_record(
    route: str, slot: str, *, template_hash: str = "", failing: str = "", **fields: Any
) -> dict[str, Any]:
    """A sealed record for a promotion: all gates passed but ``failing``; ``fields`` replace those of the record."""
    thresholds = Thresholds().model_dump(mode="json")
    gates = tuple(_gate(name, passes=name != failing) for name in GATES["promotion"])
    record = GateRecord(
        kind="promotion",
        passed=not failing,
        route=route,
        slot=slot,
        template_hash=template_hash,
        gates=gates,
        golden=GoldenUsed(name="desk", set_sha256="5" * 64, sessions=60, decisions=600),
        candidate=_scored("small", template_hash),
        baseline=_scored("large", template_hash),
        inputs=(),
        thresholds=thresholds,
        thresholds_sha256=content_id(thresholds),
        seed=0,
        scorer_version="1",
        code_version=__version__,
        created_at="2026-02-03T00:00:00Z",
        who="ann",
        schema_version=SCHEMA_VERSION,
    )
    return sealed(msgspec.structs.replace(record, **fields))


def _gate(name: str, *, passes: bool) -> Gate:
    value = 0.95 if passes else 0.5
    low, high = value - 0.02, value + 0.02
    verdict = verdict_of(">=", 0.8, value, low, high)
    assert verdict is (GateVerdict.PASS if passes else GateVerdict.FAIL)
    check = Check(
        metric=name,
        value=value,
        low=low,
        high=high,
        n=600,
        method="cluster_bootstrap",
        rule=">=",
        bound=0.8,
        verdict=verdict,
    )
    return Gate(name=name, verdict=verdict, checks=(check,))


def _scored(model: str, template_hash: str) -> Scored:
    return Scored(
        path=f"runs/{model}",
        model=model,
        adapter="",
        revision="7" * 64,
        engine="scripted",
        template_hash=template_hash,
        decisions=600,
        run_sha256="8" * 64,
        rows_sha256="9" * 64,
    )
