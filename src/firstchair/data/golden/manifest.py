"""The manifest of a golden set: what the set is, and the checksums that hold it together.

Three locks, each on the next: ``files`` holds the SHA-256 of every other file, ``set_sha256`` is the hash of
``files`` (the name under which runs are compared), and ``manifest_sha256`` is the hash of the manifest without that
one field. The text itself must be the one text that ``render`` gives, so that no byte can change unseen.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import msgspec

from firstchair.core.errors import DataError, IntegrityError
from firstchair.core.hashing import set_sha256
from firstchair.core.jsontext import JsonProblem, content_id, loads
from firstchair.data.alternatives import Alternative
from firstchair.data.corrections import Correction

SCHEMA_VERSION = "2.0"
RESTORE = "nothing was read; restore the set from a good copy, or build and freeze it again"
MANIFEST = "manifest.json"
SESSIONS = "sessions.jsonl"
CATALOGS = "catalogs.jsonl"

Status = Literal["draft", "frozen"]


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is of what."""

    sessions: int = 0
    turns: int = 0
    decision_points: int = 0
    per_tool: dict[str, int] = {}
    """Gold tool → decisions; ``final_reply`` for replies, ``(no gold)`` for decisions still without gold.
    A decision with several parallel calls counts once, under its first tool."""
    per_provenance: dict[str, int] = {}


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """``manifest.json``."""

    schema_version: str = SCHEMA_VERSION
    status: Status = "draft"
    name: str
    created_at: str
    """ISO 8601, UTC."""
    counts: Counts = Counts()
    files: dict[str, str] = {}
    """File name → hex SHA-256."""
    set_sha256: str = ""
    gold_policy: dict[str, Any] = {}
    """How gold came about: ``{"gold": "observed", "verified": true, "filters": [...]}``."""
    catalog: dict[str, Any] = {}
    """The verified catalog that the set was frozen under: name, sha256, verified. Empty in a draft."""
    corrections: tuple[Correction, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    dedup: dict[str, Any] = {}
    """``threshold``, ``dropped`` (near-duplicates left out when the draft was built), ``pairs`` found at freeze."""
    leakage: dict[str, Any] = {}
    """``threshold``, ``against`` (what the set was compared with); empty when it was not compared."""
    manifest_sha256: str = ""


def render(manifest: Manifest) -> str:
    """The one text of a manifest, its three locks filled in from ``files``."""
    body: dict[str, Any] = msgspec.to_builtins(manifest)
    body["set_sha256"] = set_sha256(manifest.files)
    del body["manifest_sha256"]
    body["manifest_sha256"] = content_id(body)
    return json.dumps(body, ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def read_manifest(directory: Path) -> Manifest:
    """Read and check ``manifest.json``.

    Raises ``DataError`` when there is none or it has another schema version, ``IntegrityError`` when it is not the
    text that was written.
    """
    path = directory / MANIFEST
    if not path.is_file():
        raise DataError("no such golden set (a directory with manifest.json); check the path", path=str(directory))
    raw = path.read_bytes()
    try:
        body = loads(raw.decode("utf-8"))
    except (UnicodeDecodeError, JsonProblem) as error:
        raise IntegrityError(f"not the manifest that was written: {error}; {RESTORE}", path=str(path)) from None
    try:
        manifest = msgspec.convert(body, Manifest)
        intact = render(manifest).encode("utf-8") == raw
    except msgspec.ValidationError as error:
        version = body.get("schema_version") if isinstance(body, dict) else None
        if isinstance(version, str) and version != SCHEMA_VERSION:
            raise _other_version(path, version) from None
        raise IntegrityError(f"not the manifest that was written: {error}; {RESTORE}", path=str(path)) from None
    if not intact:
        raise IntegrityError(f"its bytes are not the ones that were written; {RESTORE}", path=str(path))
    if manifest.schema_version != SCHEMA_VERSION:
        raise _other_version(path, manifest.schema_version)
    return manifest


def _other_version(path: Path, found: str) -> DataError:
    fix = f"this Firstchair reads {SCHEMA_VERSION!r}; build the set again with it"
    return DataError(f"found version {found!r}; {fix}", path=str(path), field="schema_version")
