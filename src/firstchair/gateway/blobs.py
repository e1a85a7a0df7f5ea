"""Large bodies as files under their own SHA-256: written once, whole or not at all, and proven when read.

blobs/ab/cd/abcd…ef
"""

from __future__ import annotations

import hashlib
import re
import time
from pathlib import Path

from firstchair.core.atomic import write_bytes
from firstchair.core.errors import ConfigError, DataError, IntegrityError

MAX_BLOB = 128 * 1024 * 1024
_NAME = re.compile(r"[0-9a-f]{64}\Z")


class BlobStore:
    """A folder of blobs; any number of processes may write it."""

    def __init__(self, directory: Path, *, max_bytes: int = MAX_BLOB):
        self._directory, self._max_bytes = directory, max_bytes

    def put(self, data: bytes) -> str:
        """Keep ``data``; its name, the same for the same bytes.

        It is on the disk when this returns, which takes milliseconds: not for an event loop. Raises ``DataError``
        for more than the limit, ``RunFailed`` when the disk refuses.
        """
        if len(data) > self._max_bytes:
            raise DataError(f"found {len(data):,} bytes; a blob has at most {self._max_bytes:,}", field="body")
        name = hashlib.sha256(data).hexdigest()
        path = self._path(name)
        try:
            is_here = path.stat().st_size == len(data)
            if is_here:
                path.touch()  # whoever is about to delete what was not used for long
        except FileNotFoundError:
            is_here = False
        if not is_here:
            write_bytes(path, data, force=True)
        return name

    def get(self, name: str) -> bytes:
        """The bytes under ``name``.

        Raises ``ConfigError`` when there are none or ``name`` is no name, ``IntegrityError`` when they changed.
        """
        path = self._path(name)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise ConfigError(f"blob {name}: not in {self._directory}; check the folder of blobs") from None
        found = hashlib.sha256(data).hexdigest()
        if found != name:
            raise IntegrityError(f"found bytes that hash to {found}; restore the file from a backup", path=str(path))
        return data

    def delete(self, name: str, *, unused_s: float = 0.0) -> bool:
        """Delete a blob that nobody has put for ``unused_s``; whether it was there and is gone."""
        path = self._path(name)
        try:
            if unused_s and time.time() - path.stat().st_mtime < unused_s:
                return False
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    def _path(self, name: str) -> Path:
        # Nothing but 64 hex digits becomes part of a path.
        if not _NAME.match(name):
            raise ConfigError(f"blob {name[:80]!r}: no such name; expected 64 hexadecimal digits")
        return self._directory / name[:2] / name[2:4] / name
