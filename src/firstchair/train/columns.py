"""Reading and adding the per-token columns of a micro-batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from firstchair.core.errors import DataError
from firstchair.train.batching import MicroBatch
from firstchair.train.reduction import row_means


def column(batch: MicroBatch, name: str) -> Tensor:
    """``[K]`` float32. A batch without a trained token has any column. Raises ``DataError`` when it is missing."""
    if name in batch.columns:
        return batch.columns[name]
    if len(batch.targets_K):
        raise DataError(f"missing; the examples have {sorted(batch.columns) or 'no columns'}", field=name)
    return batch.targets_K.float()


def with_columns(batch: MicroBatch, added: Mapping[str, Tensor]) -> MicroBatch:
    """The batch with more columns, each ``[K]``."""
    return replace(batch, columns={**batch.columns, **added})


def row_values(batch: MicroBatch, name: str) -> list[float | None]:
    """What a column says of each row as a whole (a reward, a side); ``None`` for a row without a trained token.

    Raises ``DataError`` when it differs inside a row.
    """
    values_K = column(batch, name).double()
    rows = len(batch.keys)
    means = row_means(values_K, batch.sample_K, rows)
    odd_K = (values_K - means[batch.sample_K]).abs() > 1e-6 * (1 + means[batch.sample_K].abs())
    if odd_K.any():
        key = batch.keys[int(batch.sample_K[odd_K][0])]
        raise DataError(f"row {key}: differs from token to token; expected one value for the row", field=name)
    present = set(batch.sample_K.tolist())
    return [value if row in present else None for row, value in enumerate(means.tolist())]
