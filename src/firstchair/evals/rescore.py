"""Score a run again from what it stored: other matchers, corrected gold, a newer scorer. No model is asked."""

from __future__ import annotations

from pathlib import Path

import msgspec

from firstchair.catalog.verdict import SCORER_VERSION, Scorer
from firstchair.chat.actions import ParsedReply
from firstchair.core.atomic import atomic_dir, atomic_writer
from firstchair.core.errors import DataError
from firstchair.data.golden.golden_set import GoldenSet
from firstchair.evals.run_record import (
    ROWS,
    DecisionRow,
    Run,
    encode_row,
    load_run,
    write_record,
)
from firstchair.traces.decisions import DecisionPoint


def rescore(run: Run, golden: GoldenSet, out: Path, *, force: bool = False) -> Run:
    """Write ``run`` scored against ``golden`` to ``out`` and return it.

    The candidate's replies stay as they are; gold, matchers and rules are those of now. Raises ``DataError`` when a
    decision of the run is not in ``golden``.
    """
    by_id = {decision.dp_id: decision for decision in golden.decisions}
    scorers: dict[str, Scorer] = {}
    rows: list[DecisionRow] = []
    for row in run.rows:
        decision = by_id.get(row.dp_id)
        if decision is None:
            raise DataError(
                f"golden set {golden.name!r} has no such decision; give the set that was replayed, or a later "
                "version of it",
                path=str(run.path),
                field=row.dp_id,
            )
        catalog_id = golden.sessions[decision.session_id].catalog_id
        if catalog_id not in scorers:
            scorers[catalog_id] = Scorer(golden.tools(decision.session_id), golden.rules)
        rows.append(_row(row, decision, scorers[catalog_id]))
    reference = msgspec.structs.replace(
        run.record.golden, name=golden.name, set_sha256=golden.set_sha256, path=str(golden.path or "")
    )
    record = msgspec.structs.replace(run.record, golden=reference, scorer_version=SCORER_VERSION)
    with atomic_dir(out, force=force) as directory:
        write_record(directory, record)
        with atomic_writer(directory / ROWS) as handle:
            for row in rows:
                handle.write(encode_row(row).decode("utf-8") + "\n")
    return load_run(out)


def _row(row: DecisionRow, decision: DecisionPoint, scorer: Scorer) -> DecisionRow:
    gold = decision.gold or decision.observed
    row = msgspec.structs.replace(
        row,
        gold_kind=gold.kind,
        gold_tools=tuple(call.name for call in gold.calls),
        tags=decision.tags,
        provenance=decision.provenance,
        verified=decision.verified,
        known_bad_call=any(bad.calls for bad in decision.known_bad),
    )
    if row.action is None:
        return row
    action = row.action
    reply = ParsedReply(
        calls=action.calls, text=action.text, thinking=action.thinking, problems=row.problems, salvaged=row.salvaged
    )
    made = tuple(scorer.matchers.tool_name(call.name) for call in action.calls) if row.made_tools else ()
    return msgspec.structs.replace(row, made_tools=made, scored=scorer.score(decision, reply))
