"""Checkpoints to resume from: trained weights, optimizer, random states, data cursor and the length of the log.

    checkpoints/step-00000120/
        checkpoint.json        format, step, cursor, recipe hash, and the SHA-256 of the two files below
        weights.safetensors    what is trained (all weights, or the adapter); frozen weights come from the base
        state.pt               optimizer, random states and the source's own, loaded without unpickling code

A checkpoint appears whole or not at all, and is verified before anything of it is used.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from firstchair.core.atomic import atomic_dir, write_text
from firstchair.core.errors import IntegrityError, RunFailed
from firstchair.core.hashing import sha256_file
from firstchair.core.jsontext import JsonProblem, dumps, loads

FORMAT = "firstchair-checkpoint"
VERSION = 1
_NAME = re.compile(r"step-(\d{8})")
_FILES = ("weights.safetensors", "state.pt")


@dataclass(frozen=True, slots=True)
class Position:
    """Where a run stands."""

    step: int
    """Optimizer steps done."""
    examples: int
    """Rows or prompts consumed: the data cursor. With the seed it fixes epoch, order and place."""
    tokens: int
    """Real tokens seen."""
    metrics_bytes: int
    """Length of ``metrics.jsonl``."""
    recipe_sha256: str
    template_hash: str
    """Of the renderer that made the tokens."""
    objective: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint, in memory."""

    position: Position
    weights: dict[str, Tensor]
    optimizer: list[dict[str, Any]]
    random_states: list[dict[str, Any]]
    """One per process."""
    source: bytes = b""
    """What the source needs beside the cursor (``Source.state``)."""


def random_state() -> dict[str, Any]:
    """State of the generators of Python, NumPy and torch in this process."""
    kind, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (kind, np.asarray(keys).tolist(), place, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Put the generators back."""
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
    kind, keys, place, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), place, has_gauss, gauss))
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


def save_checkpoint(root: Path, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Write ``root/step-…`` and drop all but the newest ``keep``.

    Raises ``RunFailed`` when the disk refuses; the older checkpoints are then untouched.
    """
    path = root / f"step-{checkpoint.position.step:08d}"
    if path.exists():
        return path
    try:
        with atomic_dir(path) as temporary:
            safetensors.torch.save_file(checkpoint.weights, temporary / _FILES[0])
            state = {
                "optimizer": checkpoint.optimizer,
                "random": checkpoint.random_states,
                "source": torch.frombuffer(bytearray(checkpoint.source), dtype=torch.uint8)
                if checkpoint.source
                else torch.empty(0, dtype=torch.uint8),
            }
            torch.save(state, temporary / _FILES[1])
            sums = {name: sha256_file(temporary / name) for name in _FILES}
            marker = {"format": FORMAT, "version": VERSION, **asdict(checkpoint.position), "files": sums}
            write_text(temporary / "checkpoint.json", dumps(marker) + "\n")
    except (SafetensorError, RuntimeError) as error:  # how safetensors and torch report a full disk
        raise RunFailed(f"cannot write {path}: {error}; free space and resume from the checkpoint before") from error
    prune(root, keep)
    return path


def prune(root: Path, keep: int) -> None:
    """Drop all but the newest ``keep`` checkpoints."""
    for old in list_checkpoints(root)[:-keep]:
        _remove(old)


def _remove(path: Path) -> None:
    """Rename first: a half-deleted checkpoint must not look like one."""
    grave = path.with_name(f".{path.name}.old")
    shutil.rmtree(grave, ignore_errors=True)
    path.rename(grave)
    shutil.rmtree(grave)


def list_checkpoints(root: Path) -> list[Path]:
    """Checkpoint directories, oldest first; what a crash left behind under hidden names is not among them."""
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if _NAME.fullmatch(path.name))


def sweep(root: Path) -> None:
    """Delete what a killed save or removal left under hidden names."""
    if root.is_dir():
        for path in root.iterdir():
            if path.name.startswith(".step-"):
                shutil.rmtree(path, ignore_errors=True)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read and verify a checkpoint; raises ``IntegrityError`` naming the file when anything is missing or changed."""
    marker = _read_marker(path / "checkpoint.json")
    verified = {name: _stamp(path / name) for name in _FILES}
    for name in _FILES:
        if not (path / name).is_file():
            raise IntegrityError("missing; resume from another checkpoint or start anew", path=str(path / name))
        if sha256_file(path / name) != marker["files"].get(name):
            raise IntegrityError(
                "bytes differ from those saved; resume from another checkpoint or start anew", path=str(path / name)
            )
    try:
        weights = safetensors.torch.load_file(path / _FILES[0])
        state = torch.load(path / _FILES[1], weights_only=True, map_location="cpu")
        position = Position(**{name: marker[name] for name in Position.__dataclass_fields__})
        source = state["source"].numpy().tobytes()
        checkpoint = Checkpoint(position, weights, state["optimizer"], state["random"], source)
    except (SafetensorError, RuntimeError, KeyError, TypeError, EOFError) as error:
        raise IntegrityError(f"not a checkpoint of this version: {error}", path=str(path)) from None
    for name, stamp in verified.items():
        if _stamp(path / name) != stamp:
            raise IntegrityError("replaced while it was read; resume again", path=str(path / name))
    return checkpoint


def _stamp(path: Path) -> tuple[int, ...] | None:
    """What tells a file from one that took its name, equal bytes or not; ``None`` where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read_marker(path: Path) -> dict[str, Any]:
    try:
        marker = loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise IntegrityError(
            "missing: this directory is not a checkpoint; resume from another one", path=str(path)
        ) from None
    except (JsonProblem, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise IntegrityError(f"unreadable: {error}; resume from another checkpoint", path=str(path)) from None
    if not isinstance(marker, dict) or marker.get("format") != FORMAT:
        raise IntegrityError(f"not a {FORMAT} marker; was the directory written by another program?", path=str(path))
    if marker.get("version") != VERSION:
        raise IntegrityError(f"version {marker.get('version')!r}; this program reads {VERSION}", path=str(path))
    if not isinstance(marker.get("files"), dict):
        raise IntegrityError("lists no files; the checkpoint is damaged", path=str(path))
    for name in ("step", "examples", "tokens", "metrics_bytes"):
        value = marker.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise IntegrityError(f"{name} is {value!r}; expected a count", path=str(path))
    for name in ("recipe_sha256", "template_hash", "objective"):
        if not isinstance(marker.get(name), str):
            raise IntegrityError(f"{name} is {marker.get(name)!r}; expected text", path=str(path))
    return marker
