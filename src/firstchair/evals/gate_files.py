"""The files of the gates: what is read, whether it may be used, and how a record names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from firstchair import __version__
from firstchair.chat.parity import HOLDS
from firstchair.core.atomic import write_text
from firstchair.core.errors import ConfigError, DataError
from firstchair.core.hashing import sha256_file
from firstchair.core.jsontext import content_id, dumps, loads_bytes
from firstchair.data.golden import GoldenSet
from firstchair.evals.compare import refuse_unlike, serving_differences
from firstchair.evals.gate_record import Gate, GateRecord, GoldenUsed, Input, Kind, Scored, all_passed, sealed
from firstchair.evals.gate_thresholds import Thresholds
from firstchair.evals.played import Played, read_played
from firstchair.evals.rl_ready import Parity
from firstchair.evals.run_record import ROWS, RUN, Run
from firstchair.traces.session_file import sessions_path


def refuse_unfit(candidate: Run, baseline: Run | None, golden: GoldenSet, *, allow_serving: bool = False) -> None:
    """Raise ``ConfigError`` when gates on these runs would not mean what they say.

    That is: a run of a part of the golden set, prompts rendered otherwise than in training, runs that cannot be
    compared.
    """
    whole = len(golden.decisions)
    if candidate.record.golden.decisions != whole:
        raise ConfigError(
            f"{candidate.path}: {candidate.record.golden.decisions:,} of {whole:,} decisions of the golden set; "
            "gates want all of them; replay without --limit"
        )
    who = candidate.record.candidate
    if who.trained_template not in ("", who.template_hash):
        raise ConfigError(
            f"{candidate.path}: prompts were rendered with template {who.template_hash[:12]}…; the model was trained "
            f"with {who.trained_template[:12]}…; replay without --template, --tool-format and --arguments"
        )
    if baseline is not None:
        refuse_unlike(baseline, candidate, allow_serving=allow_serving)


def read_episodes(name: str, path: Path) -> tuple[tuple[Played, ...], Input]:
    """The episodes in ``path`` and how the record names them."""
    episodes = read_played(path)
    policies = sorted({episode.policy for episode in episodes})
    return episodes, input_of(name, sessions_path(path), episodes=len(episodes), policies=policies)


def input_of(name: str, path: Path, **details: Any) -> Input:
    """A file that went in."""
    return Input(name=name, path=str(path), sha256=sha256_file(path), details=details)


def read_parity(path: Path) -> Parity:
    """What ``firstchair parity --json`` printed. Counted anew from its comparisons; raises ``DataError``."""
    try:
        data = loads_bytes(path.read_bytes())
        return Parity(
            template_hash=str(data["template_hash"]),
            other=str(data["other"]),
            prompts=len(data["comparisons"]),
            differing=sum(one["match"] not in HOLDS for one in data["comparisons"]),
        )
    except OSError as error:
        raise DataError(
            f"{error.strerror}; expected what `firstchair parity --json` prints", path=str(path)
        ) from None
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"not what `firstchair parity --json` prints: {error!r}", path=str(path)) from None


def scored(run: Run) -> Scored:
    """A run as the record names it."""
    who = run.record.candidate
    return Scored(
        path=str(run.path),
        model=who.model,
        adapter=who.adapter,
        revision=who.revision,
        engine=who.engine,
        template_hash=who.template_hash,
        decisions=run.record.golden.decisions,
        run_sha256=sha256_file(run.path / RUN),
        rows_sha256=sha256_file(run.path / ROWS),
    )


def write_gates(record: GateRecord, path: Path, *, force: bool = False) -> dict[str, Any]:
    """Write ``record`` with its seal; returns what stands there."""
    whole = sealed(record)
    write_text(path, dumps(whole) + "\n", force=force)
    return whole


def make_record(
    kind: Kind,
    gates: tuple[Gate, ...],
    runs: tuple[Run, Run | None],
    golden: GoldenSet,
    inputs: list[Input],
    thresholds: Thresholds,
    **said: Any,
) -> GateRecord:
    """The record of ``gates``. ``runs``: candidate and baseline; ``said``: who, created_at, seed, route and slot."""
    candidate, baseline = runs
    asked = thresholds.model_dump(mode="json")
    return GateRecord(
        kind=kind,
        passed=all_passed(gates),
        template_hash=candidate.record.candidate.template_hash,
        gates=gates,
        golden=GoldenUsed(
            name=golden.name,
            set_sha256=golden.set_sha256,
            sessions=len(golden.sessions),
            decisions=len(golden.decisions),
        ),
        candidate=scored(candidate),
        baseline=scored(baseline) if baseline else None,
        served_differently=tuple(serving_differences(baseline.record, candidate.record)) if baseline else (),
        inputs=tuple(inputs),
        thresholds=asked,
        thresholds_sha256=content_id(asked),
        scorer_version=candidate.record.scorer_version,
        code_version=__version__,
        **said,
    )
