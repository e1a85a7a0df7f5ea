"""A replay run on disk: ``run.json`` says what was run, ``decisions.jsonl`` holds one row per decision.

Rows are only ever appended, so a kill at any moment costs at most the line being written. Everything a report says
is computed from the rows; nothing is stored that could disagree with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec

from firstchair.catalog.verdict import Scored, Verdict
from firstchair.chat.actions import Action, ActionKind, Problem
from firstchair.core.append import LineAppender, whole_lines
from firstchair.core.atomic import write_text
from firstchair.core.errors import DataError, IntegrityError
from firstchair.core.jsontext import content_id, dumps

SCHEMA_VERSION = "1.0"
RUN, ROWS, LABELS, JUDGED = "run.json", "decisions.jsonl", "labels.jsonl", "judged.jsonl"

MadeKind = Literal["tool_call", "final_reply", "malformed", "none"]
"""What the candidate did; ``malformed`` could not be read at all, ``none`` is an error."""


class _Record(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Frozen; fields that hold their default are left out of JSON."""


class GoldenRef(_Record, frozen=True):
    """Which scoreboard."""

    name: str
    set_sha256: str
    sessions: int
    decisions: int
    path: str = ""


class Candidate(_Record, frozen=True):
    """Who was scored, and how it was served."""

    model: str
    engine: str
    adapter: str = ""
    revision: str = ""
    template_hash: str = ""
    trained_template: str = ""
    """Hash of the template that its weights were trained with; empty when unknown."""
    tool_format: str = ""
    dtype: str = ""
    context_window: int | None = None
    details: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """What headings call it: model and adapter, an absolute path by its last two parts."""
        return " + ".join(_short_path(part) for part in (self.model, self.adapter) if part)


def _short_path(text: str) -> str:
    path = PurePosixPath(text)
    return "/".join(path.parts[-2:]) if path.is_absolute() and len(path.parts) > 3 else text


class SamplingRecord(_Record, frozen=True, omit_defaults=False):
    """How it was sampled. All written out, so that a record can be read without knowing the defaults."""

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    repeats: int = 1
    """How often each decision was asked. Always once here: rates and comparisons are over one answer each."""


class RunRecord(_Record, frozen=True):
    """``run.json``."""

    golden: GoldenRef
    candidate: Candidate
    sampling: SamplingRecord
    decisions_sha256: str
    """Content address of the list of decision ids, in order."""
    scorer_version: str
    code_version: str
    created_at: str
    finished_at: str = ""
    """Empty while decisions are missing."""
    constrain: bool | Literal["enforced", "requested"] = False
    """``enforced``: no malformed call could be written. ``requested``: the server was asked, and need not obey.
    ``True`` in records that do not tell the two apart."""
    salvage: bool = False
    """Wrong habits of calling were read too."""
    seed: int = 0
    """Of the bootstrap intervals."""
    schema_version: str = ""


class DecisionRow(_Record, frozen=True):
    """One line of ``decisions.jsonl``: what gold wanted, what was made of it, and the verdicts."""

    dp_id: str
    session_id: str
    gold_kind: ActionKind
    made_kind: MadeKind
    scored: Scored
    turn: int = 0
    gold_tools: tuple[str, ...] = ()
    made_tools: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    provenance: str = ""
    verified: bool = False
    known_bad_call: bool = False
    """The decision has a recorded mistake that is a call."""
    stop: str = ""
    """Why the generation ended; empty when nothing was asked."""
    error: str | None = None
    covered: bool = True
    """Whether there is a prompt, and it and its reply fit the context window; if not, nothing was asked."""
    text: str = ""
    """The candidate's raw text; empty when the server parsed it."""
    action: Action | None = None
    problems: tuple[Problem, ...] = ()
    salvaged: bool = False
    prompt_tokens: int = 0
    """0 when unknown."""
    output_tokens: int | None = None
    cached_tokens: int = 0
    latency_s: float = 0.0
    ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None

    @property
    def obtained(self) -> bool:
        """Whether there is an action to score."""
        return self.scored.lenient is not Verdict.ERROR


@dataclass(frozen=True)
class Run:
    """A run in memory, rows in the order of the golden set."""

    path: Path
    record: RunRecord
    rows: tuple[DecisionRow, ...]

    @property
    def finished(self) -> bool:
        """Whether every decision has its row."""
        return len(self.rows) == self.record.golden.decisions


def decisions_sha256(dp_ids: Sequence[str]) -> str:
    """Content address of a list of decisions."""
    return content_id(list(dp_ids))


def write_record(directory: Path, record: RunRecord) -> None:
    """Write ``run.json`` atomically, over an earlier one."""
    text = msgspec.json.format(msgspec.json.encode(record), indent=2).decode("utf-8")
    write_text(directory / RUN, text + "\n", force=True)


def read_record(directory: Path) -> RunRecord:
    """Read ``run.json``. Raises ``DataError`` when there is none or it is not one."""
    path = directory / RUN
    if not path.is_file():
        raise DataError(f"no {RUN}; expected a run directory made by `firstchair eval replay`", path=str(directory))
    try:
        record = msgspec.json.decode(path.read_bytes(), type=RunRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"not a run record: {error}", path=str(path)) from None
    if record.schema_version != SCHEMA_VERSION:
        raise DataError(
            f"found {record.schema_version!r}; expected {SCHEMA_VERSION!r}; replay again",
            path=str(path),
            field="schema_version",
        )
    return record


_row_decoder = msgspec.json.Decoder(DecisionRow)
_encoder = msgspec.json.Encoder()


def read_rows(directory: Path) -> dict[str, DecisionRow]:
    """Rows by decision id; of several rows of one decision (a retried error) the last counts.

    A last line without its newline was cut by a kill and is passed over. Raises ``DataError`` for any other bad line.
    """
    path = directory / ROWS
    rows: dict[str, DecisionRow] = {}
    if not path.is_file():
        return rows
    for number, line in whole_lines(path):
        try:
            row = _row_decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DataError(
                f"not a decision row: {error}; restore the file or replay again", path=str(path), line=number
            ) from None
        rows[row.dp_id] = row
    return rows


def load_run(path: Path | str, *, partial: bool = False) -> Run:
    """Read a run directory.

    Raises ``DataError`` when it is not one, and unless ``partial`` when decisions are missing; ``IntegrityError``
    when the rows are not of the decisions that ``run.json`` names.
    """
    directory = Path(path)
    record = read_record(directory)
    rows = read_rows(directory)
    if len(rows) < record.golden.decisions and not partial:
        raise DataError(
            f"{len(rows):,} of {record.golden.decisions:,} decisions; finish it: run the same replay command again",
            path=str(directory / ROWS),
        )
    ordered = tuple(sorted(rows.values(), key=lambda row: _order(row.dp_id)))
    if len(rows) >= record.golden.decisions:
        found = sorted_sha256(rows)
        if found != record.decisions_sha256:
            raise IntegrityError(
                f"the decisions are not those that {RUN} names; replay again", path=str(directory / ROWS)
            )
    return Run(directory, record, ordered)


def sorted_sha256(dp_ids: Iterable[str]) -> str:
    """``decisions_sha256`` of ids in their canonical order (session, then position)."""
    return decisions_sha256(sorted(dp_ids, key=_order))


def _order(dp_id: str) -> tuple[str, int]:
    session, _, index = dp_id.rpartition(":")
    return session, int(index) if index.isdigit() else 0


def encode_row(row: DecisionRow) -> bytes:
    """A row as one line, without its newline. Half a surrogate pair, which some servers send, becomes ``?``."""
    try:
        return _encoder.encode(row)
    except UnicodeEncodeError:
        return dumps(msgspec.to_builtins(row)).encode("utf-8", "replace")


class RowWriter:
    """Appends rows as ``LineAppender`` does."""

    def __init__(self, directory: Path):
        self._lines = LineAppender(directory / ROWS)

    def append(self, row: DecisionRow) -> None:
        """Write one row. Raises ``RunFailed`` when the disk refuses."""
        self._lines.append(encode_row(row))

    def close(self) -> None:
        """Flush to disk and close."""
        self._lines.close()
