"""Rows of a replay run by hand."""

from firstchair.catalog.verdict import Scored, Verdict
from firstchair.evals.run_record import DecisionRow


def row(number=0, gold=("t",), made=("t",), verdict="pass", strict=None, **fields) -> DecisionRow:
    """A row; ``gold`` or ``made`` empty is a final reply."""
    scored = fields.pop("scored", None) or Scored(
        strict=Verdict(strict or verdict),
        lenient=Verdict(verdict),
        rule=fields.pop("rule", "value"),
        **fields.pop("s", {}),
    )
    made_kind = {"malformed": "malformed", "error": "none"}.get(verdict, "tool_call" if made else "final_reply")
    return DecisionRow(
        dp_id=f"s{number // 5}:{number % 5}",
        session_id=f"s{number // 5}",
        gold_kind="tool_call" if gold else "final_reply",
        gold_tools=gold,
        made_kind=fields.pop("made_kind", made_kind),
        made_tools=made if made_kind == "tool_call" else (),
        scored=scored,
        stop=fields.pop("stop", "end"),
        verified=fields.pop("verified", True),
        **fields,
    )
