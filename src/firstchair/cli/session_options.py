"""Options that say which sessions a command means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from firstchair.core import jsonl
from firstchair.core.errors import ConfigError

if TYPE_CHECKING:
    from firstchair.data.sources import Selection

Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME=VALUE", help="Only sessions with this label; may be given several times."),
]
SourceKind = Annotated[
    str, typer.Option("--source", help="Only sessions of this source: production, scripted, synthetic or rollout.")
]
UsedTool = Annotated[str, typer.Option("--tool", help="Only sessions that call this tool.")]
Split = Annotated[
    Path | None,
    typer.Option("--split", metavar="DIR/PART", help="Only one part of a split, e.g. split/heldout (`data split`)."),
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="At most this many sessions.")]
CreatedAt = Annotated[
    str,
    typer.Option("--created-at", help="ISO 8601 time to write down; now, unless given. Equal times, equal bytes."),
]
SkipBad = Annotated[
    int,
    typer.Option(
        "--skip-bad",
        min=0,
        help="Pass over up to this many unreadable lines of each JSONL file and list them in NAME.skipped.jsonl.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
CallArguments = Annotated[
    Literal["verbatim", "respaced"] | None,
    typer.Option("--arguments", help="How call arguments are written in prompts; as the model was trained."),
]
Wide = Annotated[bool, typer.Option("--wide", help="Cut nothing, however long the lines become.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


class BadLines:
    """What ``--skip-bad`` passes over: an allowance for each file that is read, and the files that list it."""

    def __init__(self, allowed: int, *, force: bool = True):
        self._allowed, self._force = allowed, force
        self._paths: list[Path] = []
        self._taken: list[tuple[Path, jsonl.SkipBad]] = []

    def of(self, path: Path) -> jsonl.SkipBad:
        """The allowance for ``path``. Raises ``ConfigError`` when its side file is taken."""
        from firstchair.traces.importing import check_side_files, side_file

        skip = jsonl.SkipBad(self._allowed)
        self._paths.append(path)
        self._taken.append((side_file(path), skip))
        if self._allowed:
            check_side_files((side for side, _ in self._taken), self._paths, force=self._force)
        return skip

    def write(self) -> None:
        """List what was passed over, and say so (on stderr: stdout may be JSON)."""
        from firstchair.cli.tables import counted
        from firstchair.traces.importing import list_skipped

        for side, count in list_skipped(self._taken, force=self._force).items():
            typer.echo(f"{counted(count, 'bad line')} passed over, see {side}", err=True)


def parse_pairs(pairs: list[str] | None, flag: str) -> dict[str, str]:
    """``["a=1", "b=2"]`` as a table. Raises ``ConfigError`` naming the flag."""
    found: dict[str, str] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"{flag} {pair}: expected NAME=VALUE")
        if name in found:
            raise ConfigError(f"{flag} {name} is given twice; a session has one value")
        found[name] = value
    return found


def split_ids(part: Path | None) -> frozenset[str] | None:
    """The session ids of ``DIR/PART``, after the split's checksums are checked; ``None`` when none is asked for."""
    if part is None:
        return None
    from firstchair.data.splits import part_ids

    return part_ids(part.parent, part.name.removesuffix(".jsonl"))


def selection_of(
    labels: list[str] | None,
    source_kind: str = "",
    tool: str = "",
    split: Path | None = None,
    limit: int | None = None,
) -> Selection:
    """The options as a selection of sessions; what was not given does not restrict."""
    from firstchair.data.sources import Selection

    return Selection(parse_pairs(labels, "--label"), source_kind, tool, split_ids(split), str(split or ""), limit)


def created_at_or_now(text: str) -> str:
    """The time to write down. Raises ``ConfigError`` when it is no ISO 8601 time."""
    from firstchair.core.clock import utc_now
    from firstchair.core.errors import DataError
    from firstchair.traces.times import microseconds

    if not text:
        return utc_now()
    try:
        microseconds(text, field="--created-at")
    except DataError as error:
        raise ConfigError(str(error)) from None
    return text
