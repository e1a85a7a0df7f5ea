"""What the rows of a run depend on: ``OUT/run.json``, written before anything is asked.

A run that was stopped goes on only as what it began. Rows of two models, two data sets or two versions of a scorer in
one table would be the figures of neither.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from firstchair.core.atomic import make_dirs, write_text
from firstchair.core.config import differences
from firstchair.core.errors import ConfigError, IntegrityError
from firstchair.core.jsontext import dumps

MAY_DIFFER = frozenset({"base_url", "helper_base_url", "records"})
"""Fields that say where something is, not what it is."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides a row, but for its seed."""

    benchmark: str
    dataset: str
    revision: str
    """Commit of the data set; empty where the version of inspect_evals fixes it."""
    subset: str
    records: str
    """The local file; empty for the data set itself."""
    records_sha256: str
    """Of that file."""
    model: str
    base_url: str
    helper: str
    helper_base_url: str
    n: int | None
    draw_seed: int
    temperature: float | None
    max_tokens: int | None
    sandbox: str
    versions: dict[str, str]


def begin(out: Path, setup: Setup) -> None:
    """Make the run directory."""
    make_dirs(out)
    write_text(_path(out), msgspec.json.format(dumps(msgspec.to_builtins(setup)), indent=2) + "\n")


def refuse_nothing_to_resume(out: Path) -> None:
    """Raise ``ConfigError`` where no run began."""
    if not _path(out).is_file():
        raise ConfigError(f"--resume: no run at {out}; check --out, or start it without --resume")


def refuse_another(out: Path, setup: Setup) -> None:
    """Raise ``ConfigError`` naming what differs unless the run in ``out`` is that of ``setup``; ``IntegrityError``
    when its record is damaged.
    """
    path = _path(out)
    try:
        begun = msgspec.json.decode(path.read_bytes(), type=Setup)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise IntegrityError(f"damaged: {error}; start anew in another directory", path=str(path)) from None
    found = differences(_compared(begun), _compared(setup))
    if found:
        lines = [f"  {field}: was {before!r}, is {now!r}" for field, before, now in found]
        raise ConfigError(
            f"--resume: {out} holds another run, and runs are not mixed; put these back, or choose another --out:\n"
            + "\n".join(lines)
        )


def _path(out: Path) -> Path:
    return out / "run.json"


def _compared(setup: Setup) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(setup)
    return {name: value for name, value in fields.items() if name not in MAY_DIFFER}
