"""τ-bench trajectories: a JSON list (or JSON Lines, either gzipped) of ``{task_id, trial, reward, info, traj}``.

``traj`` holds Chat Completions messages; the tools of the domain come beside, with ``--tools``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from firstchair.chat.openai_wire import messages_from_openai, tools_from_openai
from firstchair.core.errors import DataError
from firstchair.core.jsonl import parse_line
from firstchair.core.jsonstream import read_records
from firstchair.traces.checks import check_session
from firstchair.traces.importers.base import (
    Imported,
    ImportOptions,
    ToolLists,
    content_name,
    default_tools,
    empty_file,
    mark_errors,
    safe_id,
)
from firstchair.traces.redact import redact
from firstchair.traces.session import Session, turns_of

ERROR_PREFIXES = ("Error:",)
"""How τ-bench's environments report a failed call."""

_LABELS = ("task_id", "trial", "reward")


def import_tau(path: Path, options: ImportOptions) -> Iterator[Imported]:
    """Stream the trajectories of a file. ``task_id``, ``trial`` and ``reward`` become labels."""
    tools, catalog_id, received = default_tools(options, ToolLists(tools_from_openai))
    seen = False
    for record in read_records(path, on_bytes=options.on_bytes):
        seen = True
        try:
            if isinstance(record.raw, DataError):
                raise record.raw
            session = _session(parse_line(record.raw), catalog_id, options)
        except DataError as error:
            options.skip.take(error.at(record.path, record.line))
            continue
        yield Imported(session, tools, record.origin, received)
    if not seen:
        raise empty_file(path)


def _session(row: dict[str, Any], catalog_id: str, options: ImportOptions) -> Session:
    rows = row.get("traj")
    if not isinstance(rows, list):
        found = "no such field" if "traj" not in row else type(rows).__name__
        raise DataError(f"found {found}; expected a list of Chat Completions messages", field="traj")
    try:
        messages = messages_from_openai(rows, strict=False)
    except DataError as error:
        raise _in_traj(error) from None
    prefixes = ERROR_PREFIXES if options.error_prefixes is None else options.error_prefixes
    messages = mark_errors(messages, prefixes)
    own = _labels(row)
    # The same run in a file of another name is the same session; another model's run of the task is not.
    name = f"{own['task_id']}-{own.get('trial', 0)}-{content_name(messages, own)[:8]}"
    session = Session(
        session_id=f"tau-{safe_id(name)}",
        source=options.source or "rollout",
        catalog_id=catalog_id,
        messages=messages,
        turns=turns_of(messages),
        labels={**options.labels, **own},
        meta=redact({key: value for key, value in row.items() if key != "traj" and key not in _LABELS}),
    )
    try:
        check_session(session)
    except DataError as error:
        raise _in_traj(error) from None
    return session


def _in_traj(error: DataError) -> DataError:
    return DataError(error.reason, field=error.field and error.field.replace("messages", "traj", 1))


def _labels(row: Mapping[str, Any]) -> dict[str, Any]:
    task_id = row.get("task_id")
    if isinstance(task_id, bool) or not isinstance(task_id, int | str):
        raise DataError(f"found {type(task_id).__name__}; expected an integer or a text", field="task_id")
    labels: dict[str, Any] = {"task_id": task_id}
    for name in ("trial", "reward"):
        value = row.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise DataError(f"found {value!r}; expected a number", field=name)
        labels[name] = value
    return labels
