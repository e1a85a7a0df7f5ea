"""SFT records as tokens on disk: rendered and tokenised once, read by memory map, so memory does not grow with data.

<directory>/manifest.json   what it was made from (data hash, template hash, limits), the counts, sha256 of each file
            ids.i32         token ids of all rows, end to end
            mask.u8         1 where the token is trained
            offsets.i64     where each row begins; one entry more than rows
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from firstchair.core.errors import IntegrityError
from firstchair.core.hashing import sha256_file
from firstchair.core.jsontext import content_id
from firstchair.data.orchestration.selection import Which
from firstchair.train.config import OverLong
from firstchair.train.examples import Example

FORMAT = "firstchair-tokens/2"
FILES = ("ids.i32", "mask.u8", "offsets.i64")


class TokenSource(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides what the tokens are."""

    data_sha256: str
    template_hash: str
    tokenizer_sha256: str
    vocab_size: int
    """Of the model; every id is below it."""
    history: Literal["segment", "strict"]
    max_tokens: int
    over_long: OverLong
    skip_bad: int = 0
    select: Which = "all"
    clean_only: bool = False
    format: str = FORMAT

    def key(self) -> str:
        """Names the token files."""
        return content_id(msgspec.to_builtins(self))


class TokenCounts(msgspec.Struct, kw_only=True):
    """What was read and what became of it."""

    records: int = 0
    """Those that were taken."""
    left_out: dict[str, int] = {}
    """Why ``data.select`` or ``data.clean_only`` leaves records out → how many."""
    rows: int = 0
    """Token streams to train on; a record has several where the template rewrites history."""
    tokens: int = 0
    trained_tokens: int = 0
    longest: int = 0
    over_long: int = 0
    """Rows longer than ``max_tokens``: truncated + skipped + emptied."""
    truncated: int = 0
    truncated_tokens: int = 0
    skipped: int = 0
    emptied: int = 0
    """Rows that had nothing to learn left after truncation."""
    bad_lines: list[str] = []
    """One message for each line passed over."""


class TokenManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What ``manifest.json`` holds."""

    source: TokenSource
    counts: TokenCounts
    files: dict[str, str]
    """File → sha256 of its bytes, for each of ``FILES``."""


class TokenSet:
    """The rows of one data file."""

    def __init__(self, directory: Path, manifest: TokenManifest):
        self.directory, self.counts, self.source = directory, manifest.counts, manifest.source
        for name in FILES:
            # Changed ids would train to plausible but wrong losses, so the bytes count, not only their number.
            if sha256_file(directory / name) != manifest.files.get(name):
                raise IntegrityError(
                    "bytes differ from those written; delete the folder, and it is made again",
                    path=str(directory / name),
                )
        self.offsets: NDArray[np.int64] = np.fromfile(directory / "offsets.i64", np.int64)
        tokens = int(self.offsets[-1])
        self._ids, self._mask = np.zeros(0, np.int32), np.zeros(0, np.bool_)
        if tokens:  # an empty file cannot be mapped
            self._ids = np.memmap(directory / "ids.i32", np.int32, "r", shape=(tokens,))
            self._mask = np.memmap(directory / "mask.u8", np.bool_, "r", shape=(tokens,))

    @classmethod
    def open(cls, directory: Path) -> TokenSet:
        """Open a finished set; raises ``IntegrityError`` when a file is missing or its bytes changed."""
        try:
            manifest = msgspec.json.decode((directory / "manifest.json").read_bytes(), type=TokenManifest)
            return cls(directory, manifest)
        except (OSError, msgspec.DecodeError, ValueError) as error:
            raise IntegrityError(
                f"not readable as token files: {error}; delete the folder, and it is made again", path=str(directory)
            ) from None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Example:
        start, end = int(self.offsets[index]), int(self.offsets[index + 1])
        return Example(ids=self._ids[start:end], loss_mask=self._mask[start:end], key=index)

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))
