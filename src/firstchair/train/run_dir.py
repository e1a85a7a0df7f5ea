"""The directory of one training run: what it was asked to do, what it has done, and whether it may be continued.

run.json, recipe.yaml     the resolved recipe, its hash, and the hashes of everything that went in
tokens/train, tokens/dev  the data as tokens (unless the recipe names a cache)
metrics.jsonl             losses, reproducible; timings.jsonl holds what the clock says
rollouts.jsonl            how every rollout ended and was graded, where the run makes its own data;
                          sessions.jsonl holds what was said in each
checkpoints/step-…        to resume from
model/                    the result; result.json says how it came out
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import torch
import yaml

from firstchair import __version__
from firstchair.core.atomic import atomic_dir, refuse_existing, write_text
from firstchair.core.clock import utc_now
from firstchair.core.config import differences
from firstchair.core.errors import ConfigError, IntegrityError
from firstchair.core.jsontext import dumps
from firstchair.engines.weights import weights_revision
from firstchair.train.checkpoints import Checkpoint, list_checkpoints, load_checkpoint, sweep
from firstchair.train.config import RunRecipe
from firstchair.train.dist import refuse_many
from firstchair.train.metrics import read_steps
from firstchair.train.token_sets import TokenCounts, TokenSource

SCHEMA = "firstchair-run/1"


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What ``run.json`` holds."""

    schema: str = SCHEMA
    kind: str
    created_at: str
    recipe: dict[str, Any]
    recipe_sha256: str
    base_revision: str
    """Hash of the base model's weight files."""
    template_hash: str
    train: TokenSource | None = None
    """The records that were learnt from; ``None`` where the run makes its own data."""
    train_counts: TokenCounts | None = None
    dev: TokenSource | None = None
    dev_counts: TokenCounts | None = None
    processes: int = 1
    threads: int = 1
    versions: dict[str, str] = {}


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """What ``result.json`` holds."""

    finished_at: str
    steps: int
    tokens: int
    start_nll: float | None
    """Held-out loss of the base, nats a token; ``None`` without held-out data."""
    final_nll: float | None
    layout: str
    parameters: int
    trained_parameters: int


class RunDir:
    """Paths of a run directory."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def metrics(self) -> Path:
        """Reproducible metrics."""
        return self.path / "metrics.jsonl"

    @property
    def timings(self) -> Path:
        """What the clock says."""
        return self.path / "timings.jsonl"

    @property
    def rollouts(self) -> Path:
        """A line for every rollout, where the run has any."""
        return self.path / "rollouts.jsonl"

    @property
    def sessions(self) -> Path:
        """The conversation of every rollout."""
        return self.path / "sessions.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints to resume from."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The exported model or adapter."""
        return self.path / "model"

    @property
    def result(self) -> Path:
        """Written last."""
        return self.path / "result.json"

    def tokens(self, split: str, cache: Path | None, source: TokenSource) -> Path:
        """Where the token files of a split are."""
        return cache / source.key() if cache is not None else self.path / "tokens" / split

    def record(self) -> RunRecord:
        """Read ``run.json``. Raises ``ConfigError`` when there is no run, ``IntegrityError`` when it is damaged."""
        path = self.path / "run.json"
        if not path.is_file():
            raise ConfigError(f"--resume: no run at {self.path}; check `out`, or start it without --resume")
        try:
            record = msgspec.json.decode(path.read_bytes(), type=RunRecord)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise IntegrityError(f"damaged: {error}; start anew", path=str(path)) from None
        if record.schema != SCHEMA:
            raise IntegrityError(f"schema {record.schema!r}; this program reads {SCHEMA}", path=str(path))
        return record

    def finished(self) -> RunResult | None:
        """The result, when the run is over."""
        if not self.result.is_file():
            return None
        try:
            return msgspec.json.decode(self.result.read_bytes(), type=RunResult)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise IntegrityError(f"damaged: {error}; delete it and resume", path=str(self.result)) from None

    def newest_checkpoint(self, save_every: int | None) -> Checkpoint | None:
        """The checkpoint to resume from, verified; ``None`` when the run was stopped before the first was due.

        Raises ``IntegrityError`` when it is damaged, or when the log shows that there must have been one.
        """
        sweep(self.checkpoints)
        found = list_checkpoints(self.checkpoints)
        if found:
            return load_checkpoint(found[-1])
        steps = read_steps(self.metrics)
        if save_every is not None and steps > save_every:
            raise IntegrityError(
                f"no checkpoint, though {steps} steps were trained and one was due at step {save_every}; "
                "restore the folder, or start anew with --force",
                path=str(self.checkpoints),
            )
        return None


@contextmanager
def new_run(path: Path, *, force: bool) -> Iterator[Path]:
    """A directory that becomes the run when the block ends without an error."""
    refuse_existing(path, force=force)
    with atomic_dir(path, force=force) as temporary:
        yield temporary


def write_record(directory: Path, recipe: RunRecipe, record: RunRecord) -> None:
    """``run.json`` and the resolved recipe."""
    write_text(directory / "run.json", msgspec.json.format(msgspec.json.encode(record), indent=2).decode() + "\n")
    text = yaml.safe_dump(recipe.resolved(), sort_keys=False, allow_unicode=True)
    write_text(directory / "recipe.yaml", f"# sha256 {recipe.sha256()}\n{text}")


def write_result(run: RunDir, result: RunResult) -> None:
    """``result.json``: the run is over."""
    write_text(run.result, dumps(msgspec.to_builtins(result)) + "\n", force=True)


SAME = ("base_revision", "template_hash", "processes")
"""Fields of ``RunRecord`` that no resumed run may change, whatever it trains on."""


def refuse_both(*, resume: bool, force: bool) -> None:
    """Raise ``ConfigError`` when a run is to be continued and replaced."""
    if resume and force:
        raise ConfigError("--resume continues a run and --force replaces it; give one of them")


def open_run(recipe: RunRecipe, *, kind: str, template_hash: str, resume: bool, force: bool) -> RunDir:
    """The directory of a run that makes its own data, in one process: a new one, or the one to resume, checked."""
    refuse_many(kind)
    revision = weights_revision(recipe.model)
    fields = begin_record(recipe, kind=kind, base_revision=revision, template_hash=template_hash, processes=1)
    run = RunDir(recipe.out)
    if resume:
        check_same_run(run.record(), recipe, fields)
    else:
        with new_run(recipe.out, force=force) as temporary:
            write_record(temporary, recipe, RunRecord(**fields))
    return run


def check_same_run(record: RunRecord, recipe: RunRecipe, fields: dict[str, Any], **sources: object) -> None:
    """Raise unless a resumed run has the recipe, data, base and template that it began with.

    ``fields`` (what ``begin_record`` gives) and ``sources`` are fields of ``RunRecord`` as they are now.
    ``ConfigError`` lists the recipe fields that differ.
    """
    if record.recipe_sha256 != recipe.sha256():
        saved = type(recipe).model_validate(record.recipe).shaping()
        found = differences(saved, recipe.shaping())
        lines = [f"  {field}: was {before!r}, is {after!r}" for field, before, after in found]
        raise ConfigError(
            "--resume: the recipe is not the one that the run began with; put these back, or start anew:\n"
            + "\n".join(lines)
        )
    for name, now in {**{name: fields[name] for name in SAME}, **sources}.items():
        if getattr(record, name) != now:
            raise IntegrityError(
                f"{name} was {getattr(record, name)!r} when the run began and is {now!r}; put it back, or start anew",
                path=str(recipe.out / "run.json"),
            )


def versions() -> dict[str, str]:
    """Versions that decide the numbers."""
    found = {"firstchair": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    for package in ("transformers", "peft", "tokenizers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def begin_record(
    recipe: RunRecipe, *, kind: str, base_revision: str, template_hash: str, processes: int
) -> dict[str, Any]:
    """The fields of a ``RunRecord`` that do not depend on the data."""
    return {
        "kind": kind,
        "created_at": utc_now(),
        "recipe": recipe.resolved(),
        "recipe_sha256": recipe.sha256(),
        "base_revision": base_revision,
        "template_hash": template_hash,
        "processes": processes,
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }
