"""Splitting sessions into parts (train, heldout): whole groups, strata kept, same seed same split.

A group (all trials of one task) is never divided: a model trained on one trial has seen the answers of the others.
The manifest holds the checksum of each part's list; every reader checks them first.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from firstchair.core.atomic import atomic_dir
from firstchair.core.errors import ConfigError, DataError, IntegrityError
from firstchair.core.hashing import set_sha256, sha256_file
from firstchair.core.jsonl import read_jsonl, write_jsonl
from firstchair.core.jsontext import JsonProblem, content_id, loads, sha256_text
from firstchair.traces.rows import label_text
from firstchair.traces.session import Session

SCHEMA_VERSION = "1.0"
UNKNOWN = "UNKNOWN"
"""The stratum of a session that does not carry the label. ``0``, ``"0"``, ``False`` and ``"False"`` are values."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One session in a split."""

    session_id: str
    group: str
    """What must stay together; a session without the label is a group of its own."""
    stratum: str


class SplitManifest(msgspec.Struct, frozen=True, kw_only=True):
    """``manifest.json`` of a split."""

    schema_version: str = SCHEMA_VERSION
    kind: str = "split"
    by: str
    stratify: str
    seed: int
    fractions: dict[str, float]
    counts: dict[str, dict[str, Any]]
    """Part → ``{sessions, groups, strata: {stratum: sessions}}``."""
    files: dict[str, str]
    """File name → hex SHA-256."""
    set_sha256: str
    manifest_sha256: str = ""


def member_of(session: Session, by: str, stratify: str = "") -> Member:
    """``session`` with its group (label ``by``) and stratum (label ``stratify``; one stratum for all when empty)."""
    alone = _alone(session.session_id)
    return Member(
        session_id=session.session_id,
        group=_label(session, by, alone) if by else alone,
        stratum=_label(session, stratify, UNKNOWN) if stratify else "all",
    )


def _alone(session_id: str) -> str:
    return f"session {session_id}"


def count_alone(members: Sequence[Member], by: str, stratify: str, known: Iterable[str]) -> int:
    """How many of ``members`` lack the label ``by`` and are a group of their own; ``known`` are the labels there are.

    Raises ``ConfigError`` when all lack it, or ``stratify``: a mistyped label must not part what belongs together.
    """
    alone = sum(member.group == _alone(member.session_id) for member in members)
    missing = {"by": bool(by) and alone == len(members), "stratify": all(m.stratum == UNKNOWN for m in members)}
    for option, name in (("by", by), ("stratify", stratify)):
        if members and missing[option]:
            raise ConfigError(
                f"--{option} {name}: no session has the label {name!r}; labels are: "
                f"{', '.join(sorted(known)) or 'none'}; correct it, or pass --{option} '' to go without"
            )
    return alone if by else 0


def _label(session: Session, name: str, missing: str) -> str:
    value = session.labels.get(name)
    return missing if value is None or value == "" else label_text(value)


def split(members: Iterable[Member], fractions: Mapping[str, float], seed: int) -> dict[str, list[Member]]:
    """Part → members, in the order given. Depends on the ids, the fractions and ``seed``, not on the order.

    A group whose sessions differ in stratum (trials that passed and trials that failed) is a stratum of that mix.
    Inside a stratum groups are taken in an order drawn from ``seed``; each goes to the part that lacks most sessions;
    what a stratum leaves over or short is carried to the next one, so that many small strata do not all fall to one
    side. Raises ``ConfigError`` for bad fractions and when a part would be empty, ``DataError`` for an id that
    stands twice.
    """
    _check_fractions(fractions)
    groups: dict[str, list[Member]] = defaultdict(list)
    seen: set[str] = set()
    for member in members:
        if member.session_id in seen:
            raise DataError(f"session {member.session_id!r} comes twice", field="session_id")
        seen.add(member.session_id)
        groups[member.group].append(member)
    strata: dict[str, list[str]] = defaultdict(list)
    for name, group in groups.items():
        strata["+".join(sorted({member.stratum for member in group}))].append(name)

    part_of: dict[str, str] = {}
    lacking = dict.fromkeys(fractions, 0.0)
    for stratum in sorted(strata):
        names = sorted(strata[stratum], key=lambda name: sha256_text(f"{seed}\x1f{name}"))
        total = sum(len(groups[name]) for name in names)
        for part, fraction in fractions.items():
            lacking[part] += fraction * total
        for name in names:
            part = max(fractions, key=lambda part: lacking[part])
            part_of[name] = part
            lacking[part] -= len(groups[name])
    parts: dict[str, list[Member]] = {part: [] for part in fractions}
    for name, group in groups.items():
        parts[part_of[name]].extend(group)
    empty = [part for part, own in parts.items() if not own]
    if empty:
        raise ConfigError(
            f"part {empty[0]!r} would be empty: {len(groups)} groups for {len(fractions)} parts; "
            "give more sessions or tasks, or raise its fraction"
        )
    return parts


def parse_fractions(pairs: Mapping[str, str]) -> dict[str, float]:
    """``{"train": "0.8", …}`` as numbers. Raises ``ConfigError``."""
    found: dict[str, float] = {}
    for part, text in pairs.items():
        try:
            found[part] = float(text)
        except ValueError:
            raise ConfigError(f"part {part!r}: found {text!r}; expected a fraction such as 0.8") from None
    return found


def _check_fractions(fractions: Mapping[str, float]) -> None:
    if len(fractions) < 2:
        raise ConfigError("a split needs at least two parts, e.g. train=0.8 heldout=0.2")
    for part, fraction in fractions.items():
        if not part.replace("-", "").replace("_", "").isalnum():
            raise ConfigError(f"part {part!r}: use letters, digits, - and _; it becomes a file name")
        if not 0 < fraction < 1:
            raise ConfigError(f"part {part!r}: found {fraction}; expected a fraction between 0 and 1")
    if abs(sum(fractions.values()) - 1) > 1e-9:
        raise ConfigError(f"the fractions add up to {sum(fractions.values()):g}; expected 1")


def write_split(
    out: Path,
    parts: Mapping[str, Sequence[Member]],
    *,
    by: str,
    stratify: str,
    seed: int,
    fractions: Mapping[str, float],
) -> SplitManifest:
    """Write ``<part>.jsonl`` for each part and ``manifest.json``; an existing directory is refused, always."""
    with atomic_dir(out) as directory:
        files: dict[str, str] = {}
        counts: dict[str, dict[str, Any]] = {}
        for part, members in parts.items():
            rows = sorted(members, key=lambda member: member.session_id)
            path = directory / f"{part}.jsonl"
            write_jsonl(path, (msgspec.to_builtins(member) for member in rows))
            files[path.name] = sha256_file(path)
            counts[part] = {
                "sessions": len(rows),
                "groups": len({member.group for member in rows}),
                "strata": dict(sorted(Counter(member.stratum for member in rows).items())),
            }
        manifest = SplitManifest(
            by=by,
            stratify=stratify,
            seed=seed,
            fractions=dict(fractions),
            counts=counts,
            files=files,
            set_sha256=set_sha256(files),
        )
        (directory / "manifest.json").write_text(_render(manifest), encoding="utf-8", newline="\n")
    return read_split(out)[0]


def read_split(path: Path) -> tuple[SplitManifest, dict[str, tuple[Member, ...]]]:
    """Read a split after checking every checksum.

    Raises ``IntegrityError`` naming the file when a byte differs, ``DataError`` when it is no split.
    """
    manifest_path = path / "manifest.json"
    if not manifest_path.is_file():
        raise DataError(
            "no such split (a directory with manifest.json); make one: firstchair data split, or tasks split",
            path=str(path),
        )
    raw = manifest_path.read_bytes()
    try:
        manifest = msgspec.convert(loads(raw.decode("utf-8")), SplitManifest)
        intact = _render(manifest).encode("utf-8") == raw
    except (UnicodeDecodeError, JsonProblem, msgspec.ValidationError) as error:
        raise IntegrityError(f"not the manifest of a split: {error}", path=str(manifest_path)) from None
    if not intact or manifest.kind != "split":
        raise IntegrityError("its bytes are not the ones that were written; split again", path=str(manifest_path))
    parts: dict[str, tuple[Member, ...]] = {}
    for name, sha256 in manifest.files.items():
        file = path / name
        if not file.is_file() or sha256_file(file) != sha256:
            raise IntegrityError("missing or changed since the split was made; split again", path=str(file))
        parts[file.stem] = tuple(msgspec.convert(row, Member) for _, row in read_jsonl(file))
    return manifest, parts


def part_ids(path: Path, part: str) -> frozenset[str]:
    """The session ids of one part. Raises ``ConfigError`` when the split has no such part."""
    _, parts = read_split(path)
    if part not in parts:
        raise ConfigError(f"{path} has no part {part!r}; it has {', '.join(sorted(parts))}")
    return frozenset(member.session_id for member in parts[part])


def _render(manifest: SplitManifest) -> str:
    body: dict[str, Any] = msgspec.to_builtins(manifest)
    body["set_sha256"] = set_sha256(manifest.files)
    del body["manifest_sha256"]
    body["manifest_sha256"] = content_id(body)
    return json.dumps(body, ensure_ascii=False, allow_nan=False, indent=2) + "\n"
