"""Hand labels: a person says of a decision whether the candidate's action was right.

``draw`` picks undecided decisions at random and writes a file to fill in; ``import_labels`` reads it back. Only
labels of decisions drawn at random may estimate a rate; hand-picked ones are kept, and count for nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from firstchair.core.atomic import atomic_writer
from firstchair.core.errors import ConfigError, DataError
from firstchair.core.jsonl import read_jsonl
from firstchair.core.jsontext import dumps
from firstchair.evals.metrics import undecided
from firstchair.evals.run_record import LABELS, DecisionRow, Run


class Label(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One person's word on one decision."""

    dp_id: str
    right: bool
    by: str = ""
    note: str = ""
    drawn: str = ""
    """How the decision was chosen at random; empty for a hand-picked one."""


def draw(run: Run, count: int, *, seed: int, only_undecided: bool = True) -> list[dict[str, Any]]:
    """Rows to fill in: ``right`` is null until a person writes true or false.

    Raises ``ConfigError`` when there is nothing to label.
    """
    pool = [row for row in run.rows if row.obtained and (undecided(row) or not only_undecided)]
    if not pool:
        if not any(row.obtained for row in run.rows):
            raise ConfigError(f"{run.path}: no decision of this run has an action; there is nothing to label")
        raise ConfigError(
            f"{run.path}: code decides every decision of this run; add --decided to draw among those, which checks "
            "whether code decides as people do"
        )
    chosen = random.Random(seed).sample(pool, min(count, len(pool)))
    how = f"{len(chosen)} of {len(pool)} {'undecided ' if only_undecided else ''}decisions, seed {seed}"
    return [_template(row, how) for row in chosen]


def _template(row: DecisionRow, how: str) -> dict[str, Any]:
    return {
        "dp_id": row.dp_id,
        "right": None,
        "by": "",
        "note": "",
        "drawn": how,
        "see": {
            "verdict": row.scored.lenient,
            "field": row.scored.field,
            "candidate": msgspec.to_builtins(row.action) if row.action else None,
        },
    }


def read_labels(path: Path, *, random_sample: bool = False) -> tuple[list[Label], int]:
    """Labels of a JSONL file, and how many rows are still unfilled (``right`` null).

    ``random_sample`` states that the decisions were chosen at random by other means. Raises ``DataError`` with
    file:line for a row that is no label.
    """
    labels: list[Label] = []
    blank = 0
    for number, row in read_jsonl(path):
        if row.get("right") is None and "right" in row:
            blank += 1
            continue
        try:
            label = msgspec.convert({key: value for key, value in row.items() if key != "see"}, Label)
        except msgspec.ValidationError as error:
            raise DataError(
                f"not a label: {error}; expected {{dp_id, right: true|false, by, note}}", path=str(path), line=number
            ) from None
        if random_sample and not label.drawn:
            label = msgspec.structs.replace(label, drawn="stated at import")
        labels.append(label)
    return labels, blank


def import_labels(run: Run, path: Path, *, random_sample: bool = False) -> tuple[int, int]:
    """Merge a label file into the run's own; returns how many labels were read and how many rows were unfilled.

    A later label of a decision replaces an earlier one. Raises ``DataError`` for a decision the run does not have,
    and for a file without rows.
    """
    labels, blank = read_labels(path, random_sample=random_sample)
    if not labels and not blank:
        raise DataError(
            "found no rows; expected one JSON object a line, such as `firstchair eval labels draw` writes",
            path=str(path),
        )
    known = {row.dp_id for row in run.rows}
    for label in labels:
        if label.dp_id not in known:
            raise DataError("the run has no such decision; check the id", path=str(path), field=label.dp_id)
    merged = {label.dp_id: label for label in (*labels_of(run), *labels)}
    with atomic_writer(run.path / LABELS, force=True) as out:
        for label in merged.values():
            out.write(dumps(msgspec.to_builtins(label)) + "\n")
    return len(labels), blank


def labels_of(run: Run) -> list[Label]:
    """The labels in a run directory; none when it has no label file."""
    path = run.path / LABELS
    return read_labels(path)[0] if path.is_file() else []


def agreement(rows: Sequence[DecisionRow], labels: Iterable[Label], said: Mapping[str, bool]) -> tuple[int, int]:
    """How often ``said`` agrees with people, and of how many labelled decisions both speak."""
    ids = {row.dp_id for row in rows}
    both = [label for label in labels if label.dp_id in said and label.dp_id in ids]
    return sum(said[label.dp_id] == label.right for label in both), len(both)
