"""The demo's gates: may a model take the slot, against the base model that it began as?

The base model is priced as the incumbent, for want of a hosted one: what is measured of cost is tokens, not money.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from firstchair.cli.demo_gateway import CANDIDATE, INCUMBENT, SLOT, GatewayFiles
from firstchair.cli.demo_score import Scores
from firstchair.cli.gates import run_spending
from firstchair.core.clock import utc_now
from firstchair.data.golden import GoldenSet
from firstchair.evals.gate_files import make_record, read_episodes, write_gates
from firstchair.evals.gate_record import GateRecord, GateVerdict, sealed
from firstchair.evals.gate_thresholds import Thresholds
from firstchair.evals.gates import Evidence, six_gates


def run_gates(
    candidate: Scores, baseline: Scores, golden: GoldenSet, files: GatewayFiles, *, seed: int
) -> GateRecord:
    """Measure the six gates of ``candidate`` (which may be the baseline itself) and write their record."""
    played, used = read_episodes("episodes", candidate.episodes)
    played_before, used_before = read_episodes("baseline_episodes", baseline.episodes)
    prices = files.folder / "prices.yaml"
    route = INCUMBENT if candidate is baseline else CANDIDATE
    spent_before, spent, priced = run_spending(prices, candidate.run, baseline.run, route, INCUMBENT)
    evidence = Evidence(
        candidate=candidate.run.rows,
        kinds=golden.kinds,
        baseline=baseline.run.rows,
        episodes=played,
        baseline_episodes=played_before,
        spending=spent,
        baseline_spending=spent_before,
    )
    record = make_record(
        "promotion",
        six_gates(evidence, Thresholds(), seed=seed),
        (candidate.run, baseline.run),
        golden,
        [used, used_before, priced],
        Thresholds(),
        who="demo",
        created_at=utc_now(),
        seed=seed,
        route=str(route),
        slot=SLOT,
    )
    write_gates(record, gates_path(files.out, candidate.run.path.name))
    return record


def gates_path(out: Path, name: str) -> Path:
    """Where a record lies: of the six gates under the name of the model's replay run, or ``rl-ready``."""
    return out / "gates" / f"{name}.json"


def promotion_of(record: GateRecord) -> dict[str, Any]:
    """How the candidate is promoted: on the record if all gates passed, else by an override that names the others."""
    if record.passed:
        return {"gates_record": sealed(record)}
    return {"override": f"demo: {open_gates(record)}; nobody is served"}


def open_gates(record: GateRecord) -> str:
    """``routing undecided, stop undecided``: every gate that did not pass."""
    return ", ".join(f"{gate.name} {gate.verdict}" for gate in record.gates if gate.verdict is not GateVerdict.PASS)
