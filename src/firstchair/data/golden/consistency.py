"""Whether the parts of a golden set agree with each other; checksums only say that nothing changed since."""

from __future__ import annotations

from collections.abc import Iterator

from firstchair.core.errors import DataError
from firstchair.data.corrections import brief, same_action
from firstchair.data.golden.golden_set import GoldenSet, catalog_lines, session_lines
from firstchair.data.golden.manifest import CATALOGS, SESSIONS
from firstchair.data.golden.write import counts_of
from firstchair.traces.checks import check_session
from firstchair.traces.decisions import decision_points


def text_problems(golden: GoldenSet) -> Iterator[str]:
    """Files that are not the one text of what they hold: the readable view then says something else."""
    assert golden.path is not None
    for name, lines in ((SESSIONS, session_lines(golden)), (CATALOGS, catalog_lines(golden))):
        stored = (golden.path / name).read_bytes().split(b"\n")
        written = [line.rstrip("\n").encode("utf-8") for line in lines]
        for number, (left, right) in enumerate(zip(stored, [*written, b""], strict=False), start=1):
            if left != right:
                yield f"{name}:{number}: its readable view does not agree with its messages and actions"
        if len(stored) != len(written) + 1:
            yield f"{name}: {len(stored) - 1} lines; expected {len(written)}"


def decision_problems(golden: GoldenSet) -> Iterator[str]:
    """Sessions that are broken, or whose decisions are not the ones that the messages give."""
    for session, decisions in golden.by_session():
        try:
            check_session(session)
        except DataError as error:
            yield f"{session.session_id}: {error}"
        expected = [(p.dp_id, p.turn, p.seq, p.context_end) for p in decision_points(session)]
        found = [(p.dp_id, p.turn, p.seq, p.context_end) for p in decisions]
        if found != expected:
            yield f"{session.session_id}: {len(found)} decisions; its messages give {len(expected)} others"


def count_problems(golden: GoldenSet) -> Iterator[str]:
    """Counts in the manifest that the records do not bear out."""
    expected, found = counts_of(golden), golden.manifest.counts
    for field in found.__struct_fields__:
        if getattr(found, field) != getattr(expected, field):
            yield f"counts.{field}: found {getattr(found, field)}; the records give {getattr(expected, field)}"


def correction_problems(golden: GoldenSet) -> Iterator[str]:
    """Corrections in the manifest that the records do not show."""
    decisions = {decision.dp_id: decision for decision in golden.decisions}
    last = {correction.dp_id: correction for correction in golden.manifest.corrections}
    for dp_id, correction in last.items():
        decision = decisions.get(dp_id)
        if decision is None:
            yield f"{dp_id}: corrected, but not in the set"
            continue
        ids = tuple(call.id for call in decision.observed.calls)
        after = correction.after.action(ids)
        if decision.gold is None or not same_action(decision.gold, after):
            yield f"{dp_id}: corrected to {brief(after, 60)}, but its gold is another"
        if not 0 <= correction.evidence <= decision.context_end:
            yield f"{dp_id}: the evidence of its correction (message {correction.evidence}) is not in its trace"
