"""Records of a benchmark in a file of one's own, in the data set's own record shape."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from firstchair.core.errors import DataError
from firstchair.core.jsonl import read_jsonl

FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gaia": ("task_id", "Question", "Level", "Final answer", "file_name", "Annotator Metadata"),
        "mmlu_pro": ("question_id", "question", "options", "answer", "answer_index", "cot_content", "category"),
        "supergpqa": ("uuid", "question", "options", "answer", "answer_letter", "discipline", "field", "difficulty"),
        "hle": (
            "id",
            "question",
            "image",
            "answer",
            "answer_type",
            "author_name",
            "rationale",
            "raw_subject",
            "category",
        ),
        "frames": ("Prompt", "Answer", "reasoning_types", "wiki_links"),
        "tau2": ("id", "user_scenario", "evaluation_criteria"),
        "bfcl": ("id", "category_name", "question", "function", "ground_truth"),
    }
)
"""Benchmark → the fields that each of its records has. BFCL keeps the last in a file of its own, and the category in
the file's name; here they stand in the record."""


def read_records(name: str, path: Path) -> list[dict[str, Any]]:
    """The records. Raises ``DataError`` naming line and field for one that lacks a field, and for an empty file."""
    records: list[dict[str, Any]] = []
    for line, record in read_jsonl(path):
        missing = [field for field in FIELDS[name] if field not in record]
        if missing:
            raise DataError(
                f"not in the record; a record of {name} has {', '.join(FIELDS[name])}",
                path=str(path),
                line=line,
                field=missing[0],
            )
        records.append(record)
    if not records:
        raise DataError("no record in it", path=str(path))
    return records
