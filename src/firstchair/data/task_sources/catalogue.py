"""The task sources that ship, and their rows as streams: from the hub by name, or from files of the same fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from firstchair.core.errors import ConfigError
from firstchair.core.jsonl import SkipBad
from firstchair.data.task_sources import general_thought, open_thoughts, own_tasks, tool_scale
from firstchair.data.task_sources.fields import Fields
from firstchair.data.task_sources.hub import HubFiles
from firstchair.data.task_sources.rows import PARQUET, Region, Row, jsonl_rows, local_files, parquet_rows
from firstchair.rollout.orchestration.task import OrchestrationTask


@dataclass(frozen=True)
class TaskSource:
    """A kind of rows."""

    name: str
    convert: Callable[[Fields], OrchestrationTask]
    repo_id: str = ""
    """On the hub; empty: local files alone."""
    columns: tuple[str, ...] = ()
    """All that is read of a row; empty: every field."""
    domains: tuple[str, ...] = ()
    """That its tasks can have; empty: any."""
    sorted_by: str = ""
    """The field by which its files are sorted; its values are ``domains``."""


SOURCES: Mapping[str, TaskSource] = MappingProxyType(
    {
        general_thought.NAME: TaskSource(
            name=general_thought.NAME,
            convert=general_thought.task_of,
            repo_id="GeneralReasoning/GeneralThought-430K",
            columns=general_thought.COLUMNS,
            domains=general_thought.DOMAINS,
        ),
        open_thoughts.NAME: TaskSource(
            name=open_thoughts.NAME,
            convert=open_thoughts.task_of,
            repo_id="open-thoughts/OpenThoughts3-1.2M",
            columns=open_thoughts.COLUMNS,
            domains=open_thoughts.DOMAINS,
            sorted_by="domain",
        ),
        tool_scale.NAME: TaskSource(
            name=tool_scale.NAME,
            convert=tool_scale.task_of,
            repo_id="nvidia/ToolScale",
            columns=tool_scale.COLUMNS,
            domains=tool_scale.DOMAINS,
        ),
    }
)
OWN = TaskSource(name=own_tasks.NAME, convert=own_tasks.task_of)


@dataclass(frozen=True)
class TaskStream:
    """Rows of one source, or of one domain's region of it."""

    source: TaskSource
    domains: tuple[str, ...]
    """That its tasks can have; empty: any."""
    rows: Iterator[Row]


def open_streams(text: str, skip: SkipBad) -> list[TaskStream]:
    """``NAME`` (from the hub), ``NAME=PATH`` (files with the same fields), or ``PATH`` (files of tasks) as streams.

    Of a source whose files are sorted by domain, each domain's region is a stream of its own. ``skip`` takes lines
    that are no JSON. Raises ``ConfigError`` for an unknown name, and as ``HubFiles`` and ``local_files`` do.
    """
    name, given, where = text.partition("=")
    if name in SOURCES:
        source = SOURCES[name]
        return _local(source, Path(where), skip) if given else _from_hub(source, HubFiles(source.repo_id))
    if given:
        raise ConfigError(f"{text}: no source {name!r}; expected one of {', '.join(SOURCES)}, or a path alone")
    if not Path(text).exists():
        raise ConfigError(f"{text}: nothing there; expected a file of tasks, or one of {', '.join(SOURCES)}")
    return _local(OWN, Path(text), skip)


def own_files(path: Path, skip: SkipBad) -> list[TaskStream]:
    """A file or directory of tasks as streams, whatever its name. Raises ``ConfigError`` when there is none."""
    if not path.exists():
        raise ConfigError(f"{path}: no such file; check the path")
    return _local(OWN, path, skip)


def _local(source: TaskSource, path: Path, skip: SkipBad) -> list[TaskStream]:
    files = local_files(path)
    regions = _regions(source) if all(file.name.endswith(PARQUET) for file in files) else [None]
    return [_stream(source, region, _local_rows(source, files, skip, region)) for region in regions]


def _local_rows(source: TaskSource, files: Sequence[Path], skip: SkipBad, region: Region | None) -> Iterator[Row]:
    for file in files:
        if file.name.endswith(PARQUET):
            with file.open("rb") as handle:
                yield from parquet_rows(handle, str(file), source.columns, region)
        else:
            yield from jsonl_rows(file, skip)


def _from_hub(source: TaskSource, files: HubFiles) -> list[TaskStream]:
    paths = files.paths()
    return [_stream(source, region, _hub_rows(source, files, paths, region)) for region in _regions(source)]


def _hub_rows(source: TaskSource, files: HubFiles, paths: Sequence[str], region: Region | None) -> Iterator[Row]:
    for path in paths:
        with files.open(path) as handle:
            yield from parquet_rows(handle, path, source.columns, region)


def _regions(source: TaskSource) -> list[Region | None]:
    return [Region(source.sorted_by, domain) for domain in source.domains] if source.sorted_by else [None]


def _stream(source: TaskSource, region: Region | None, rows: Iterator[Row]) -> TaskStream:
    return TaskStream(source, source.domains if region is None else (region.value,), rows)
