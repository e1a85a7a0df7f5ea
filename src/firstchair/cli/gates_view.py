"""How the gates are printed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from firstchair.cli.tables import Column, number, print_json, print_list
from firstchair.evals.gate_record import Check, Gate, GateRecord, GateVerdict
from firstchair.evals.report import percent, points


def print_gates(record: GateRecord, sealed: dict[str, Any], out: Path, *, as_json: bool) -> None:
    """One line a check, why what did not pass did not, and where the record lies."""
    if as_json:
        print_json(sealed)
        return
    columns = [Column("gate", "middle", 24), *map(number, ("value", "95%", "n", "bound"))]
    rows = [line for gate in record.gates for line in _lines(gate)]
    baseline = f", baseline {record.baseline.model}" if record.baseline else ""
    subject = f"{record.route} in slot {record.slot}" if record.route else record.candidate.model
    print_list([*columns, Column("verdict")], rows, title=f"{subject}{baseline}")
    _print_outcome(record, out)


def _print_outcome(record: GateRecord, out: Path) -> None:
    """What did not pass and why, and where the record lies."""
    console = Console()
    for gate in record.gates:
        for line in (*_reasons(gate), *_left_out(gate)):
            console.print(f"{gate.name}: {line}", markup=False, highlight=False, soft_wrap=True)
    counts = [f"{gate.name} {gate.verdict}" for gate in record.gates if gate.verdict is not GateVerdict.PASS]
    verdict = "passed: all gates" if record.passed else f"not passed: {', '.join(counts)}"
    console.print(verdict, style="green" if record.passed else "red", markup=False, highlight=False, soft_wrap=True)
    console.print(f"record: {out}", highlight=False, soft_wrap=True)


def print_side_by_side(records: Mapping[str, GateRecord], out: Path) -> None:
    """The gates of several models (title → record) on one baseline; what the last one did not pass; where it lies.

    A line a gate, and below it the checks that are of no single tool.
    """
    last = list(records.values())[-1]
    columns = [Column("gate", "middle", 24), *map(number, records), Column("bound")]
    rows: list[list[str]] = []
    for place, gate in enumerate(last.gates):
        same = [record.gates[place] for record in records.values()]
        rows.append([gate.name, *(str(one.verdict) for one in same), ""])
        for check in gate.checks:
            if not check.of:
                found = [next((c for c in one.checks if c.metric == check.metric and not c.of), None) for one in same]
                values = ["–" if one is None else shown(one, one.value) for one in found]
                rows.append([f"· {check.metric}", *values, f"{check.rule} {shown(check, check.bound)}"])
    print_list(columns, rows, title="Six gates, against the base model")
    _print_outcome(last, out)


def _lines(gate: Gate) -> list[list[str]]:
    """The gate with its verdict, and one line below it for each check."""
    return [[gate.name, "", "", "", "", str(gate.verdict)], *map(_line, gate.checks)]


def _line(check: Check) -> list[str]:
    counted = check.method == "count" or check.low is None
    return [
        f"· {_metric(check)}",
        shown(check, check.value),
        "" if counted else _interval(check),
        f"{check.n:,}",
        f"{check.rule} {shown(check, check.bound)}",
        str(check.verdict),
    ]


def _interval(check: Check) -> str:
    low, high = shown(check, check.low), shown(check, check.high)
    return f"{low.removesuffix('%')}–{high.removesuffix('%')}" if check.unit == "share" else f"{low} to {high}"


def _metric(check: Check) -> str:
    return f"{check.metric} {check.of}".rstrip()


def shown(check: Check, value: float | None) -> str:
    """A figure in the unit of its check."""
    if value is None:
        return "–"
    if check.unit == "usd":
        return f"{value:+.3g}".replace("-", "−") if value else "0"
    if check.unit == "count":
        return f"{value:g}"
    return points(value) if check.unit == "points" else percent(value)


def _reasons(gate: Gate) -> list[str]:
    """Why the gate did not pass."""
    lines = [gate.why] if gate.why else []
    for check in gate.checks:
        if check.verdict is GateVerdict.PASS:
            continue
        parts = [f"{_metric(check)} {check.verdict}", check.note]
        if check.verdict is GateVerdict.UNDECIDED:
            many = f"about {check.needed:,} samples" if check.needed is not None else "more samples"
            parts.append(f"{check.n:,} samples, {many} would decide")
        lines.append("; ".join(part for part in parts if part))
    return lines


def _left_out(gate: Gate) -> list[str]:
    return [f"left out: {part.count:,} of {part.what}: {part.reason}" for part in gate.excluded]
