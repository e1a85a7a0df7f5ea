"""Rows of JSON Lines and Parquet files, streamed, each with its place: ``path:line``, or ``path:row`` in Parquet."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from firstchair.core.errors import DataError
from firstchair.core.extras import require
from firstchair.core.jsonl import SkipBad, read_jsonl

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

BATCH_ROWS = 64
"""Rows of reasoning traces are long: 25 KB each on average in OpenThoughts3."""
JSONL = (".jsonl", ".jsonl.gz")
PARQUET = (".parquet",)


class Row(NamedTuple):
    """One record of a file."""

    path: str
    line: int
    """From 1."""
    fields: dict[str, Any]


class Region(NamedTuple):
    """The rows of which ``field`` is ``value``."""

    field: str
    value: str


def local_files(path: Path) -> list[Path]:
    """``path`` itself, or the JSON Lines and Parquet files below a directory, by name. Raises ``DataError``."""
    if path.is_file():
        if not path.name.endswith((*JSONL, *PARQUET)):
            raise DataError(f"expected a file that ends in {', '.join((*JSONL, *PARQUET))}", path=str(path))
        return [path]
    found = [file for file in sorted(path.rglob("*")) if file.is_file() and file.name.endswith((*JSONL, *PARQUET))]
    if not found:
        raise DataError(f"no file that ends in {', '.join((*JSONL, *PARQUET))}; check the path", path=str(path))
    return found


def jsonl_rows(path: Path, skip: SkipBad) -> Iterator[Row]:
    """Rows of a JSON Lines file. A line that is none goes to ``skip``, or raises ``DataError``."""
    for number, fields in read_jsonl(path, skip=skip):
        yield Row(str(path), number, fields)


def parquet_rows(
    source: IO[bytes], path: str, columns: Sequence[str] = (), region: Region | None = None
) -> Iterator[Row]:
    """Rows of a Parquet file; ``columns`` it lacks are left out, all when none are named.

    With a ``region`` only its rows; parts of the file whose statistics rule it out are not even read, so that one
    region in the middle of many large files costs no more than itself. Raises ``DataError``.
    """
    require("tools")
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(source) as file:
            wanted = [name for name in file.schema_arrow.names if not columns or name in columns]
            before = 0
            for group in range(file.num_row_groups):
                if region is None or _may_hold(file, group, region):
                    number = before
                    for batch in file.iter_batches(batch_size=BATCH_ROWS, row_groups=[group], columns=wanted):
                        for fields in batch.to_pylist():
                            number += 1
                            if region is None or fields.get(region.field) == region.value:
                                yield Row(path, number, _as_json(fields))
                before += file.metadata.row_group(group).num_rows
    except pyarrow.ArrowException as error:
        raise DataError(f"not a readable Parquet file: {error}", path=path) from None


def _may_hold(file: ParquetFile, group: int, region: Region) -> bool:
    parts = file.metadata.row_group(group)
    for number in range(parts.num_columns):
        column = parts.column(number)
        known = column.statistics
        if column.path_in_schema == region.field and known is not None and known.has_min_max:
            return bool(known.min <= region.value <= known.max)
    return True


def _as_json(value: Any) -> Any:
    """``value`` in the types of JSON: times in ISO 8601, decimal numbers and bytes as text."""
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta | decimal.Decimal):
        return str(value)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
