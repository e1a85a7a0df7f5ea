"""The third level: the share that is really right, as far as people have looked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from firstchair.catalog.verdict import Verdict
from firstchair.evals.judge import Judged, Unscored
from firstchair.evals.labels import Label, agreement
from firstchair.evals.metrics import undecided
from firstchair.evals.ppi import true_rate
from firstchair.evals.run_record import DecisionRow
from firstchair.evals.stats import Rate


class TrueLevel(msgspec.Struct, frozen=True):
    """The estimate, or why there is none, and what it rests on."""

    rate: Rate | None
    why: str
    """What the estimate rests on, or what is missing for one."""
    decided: int
    undecided: int
    labels: int
    """Labels of undecided decisions that were drawn at random."""
    handpicked: int
    """Labels that may not estimate anything."""
    judged: int
    unscored: int
    judge_agrees: int
    judge_labelled: int
    """The judge agrees with people on ``judge_agrees`` of ``judge_labelled`` decisions."""
    code_agrees: int
    code_labelled: int
    """The same for verdicts of code on decided decisions."""


def true_level(
    rows: Sequence[DecisionRow],
    labels: Sequence[Label] = (),
    judged: Mapping[str, Judged | Unscored] | None = None,
    *,
    seed: int = 0,
) -> TrueLevel:
    """Estimate the true pass rate over all rows with an action; nothing is made up where people have not looked.

    ``seed`` is the run's: where code decides everything, the rate is the lenient one, interval included.
    """
    kept = [row for row in rows if row.obtained]
    judged = judged or {}
    open_ids = {row.dp_id for row in kept if undecided(row)}
    words = {dp_id: word.right for dp_id, word in judged.items() if isinstance(word, Judged) and dp_id in open_ids}
    usable = {label.dp_id: float(label.right) for label in labels if label.drawn and label.dp_id in open_ids}
    # Any fixed guess keeps the estimate unbiased; the judge's own mean keeps it narrow.
    guess = sum(words.values()) / len(words) if words else None
    code = {row.dp_id: row.scored.lenient is Verdict.PASS for row in kept if row.dp_id not in open_ids}
    estimate = true_rate(
        [None if row.dp_id in open_ids else float(code[row.dp_id]) for row in kept],
        [float(words[row.dp_id]) if row.dp_id in words else guess for row in kept],
        [usable.get(row.dp_id) for row in kept],
        [row.session_id for row in kept],
        seed=seed,
    )
    code_agrees, code_labelled = agreement(kept, labels, code)
    judge_agrees, judge_labelled = agreement(kept, labels, words)
    return TrueLevel(
        rate=estimate,
        why=_why(estimate is not None, len(kept), len(open_ids), len(usable), len(words)),
        decided=len(code),
        undecided=len(open_ids),
        labels=len(usable),
        handpicked=sum(1 for label in labels if not label.drawn),
        judged=len(words),
        unscored=sum(1 for dp_id, word in judged.items() if isinstance(word, Unscored) and dp_id in open_ids),
        judge_agrees=judge_agrees,
        judge_labelled=judge_labelled,
        code_agrees=code_agrees,
        code_labelled=code_labelled,
    )


def _why(estimated: bool, kept: int, undecided_count: int, labels: int, judged: int) -> str:
    if not kept:
        return "not estimated: no decision has an action"
    if not undecided_count:
        return "code decides every decision, so this is the lenient rate"
    if not estimated:
        return (
            f"not estimated: code cannot decide {undecided_count:,} decisions and {labels} of them carry a label "
            "drawn at random; draw and fill in some with `firstchair eval labels draw`"
        )
    judge = f" and a judge's word on {judged:,}" if judged else ""
    return (
        f"code decides {kept - undecided_count:,}; {labels} random hand labels{judge} speak for {undecided_count:,}"
    )
