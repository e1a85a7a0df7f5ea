"""Checksums of files and trees."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from firstchair.core.jsontext import content_id


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes, read in blocks."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def set_sha256(files: Mapping[str, str]) -> str:
    """One hash for a set of files: SHA-256 of the canonical JSON of ``{name: sha256}``."""
    return content_id(dict(files))
