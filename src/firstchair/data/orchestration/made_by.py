"""What a file of groups was made by: ``NAME.run.json`` beside ``NAME.jsonl``. Another run must not go on in it.

A file of groups that holds the answers of two policies, or of one policy with two sets of experts, can be told apart
by nobody afterwards: every rate and every price of it would be of neither.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from firstchair.core.atomic import write_text
from firstchair.core.config import differences
from firstchair.core.errors import IntegrityError
from firstchair.core.jsontext import content_id, dumps
from firstchair.rollout.orchestration import prompt
from firstchair.rollout.orchestration.policy_spec import LocalPolicy, ServerPolicy
from firstchair.rollout.orchestration.setup import OpenedParts
from firstchair.rollout.rollouts import RolloutPlan


class MadeBy(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides what a rollout of a task may become, and not which tasks there are and how many samples
    of each, which may grow.
    """

    policy: dict[str, Any]
    weights: str
    """Hash of its weights; empty behind a server."""
    offered: dict[str, Any]
    """Name in the catalog → spec, and of an expert its entry and price, before anything is sampled or anonymised."""
    setup: dict[str, Any]
    instructions: str
    """SHA-256 of the system prompt."""
    seed: int
    max_steps: int


MAY_DIFFER = frozenset({"base_url", "api_key_env", "password_env", "device", "workers", "concurrency"})
"""Fields of policy and setup, at any depth, that say where or how fast something runs, not what it answers."""

_NOT_SETUP: dict[str, Any] = {
    # What is offered stands beside it.
    **dict.fromkeys(("catalog", "experts", "prices"), True),
    # These may hold keys.
    "mcp": {"servers": {"__all__": {"env", "headers"}}},
}

MAX_SHOWN = 120
"""Characters of a value in an error."""


def made_by(policy: ServerPolicy | LocalPolicy, weights: str, opened: OpenedParts, plan: RolloutPlan) -> MadeBy:
    """The record of a run. ``weights`` is the revision of the engine that serves ``policy``."""
    offered: dict[str, Any] = {}
    for one in opened.full.offered:
        offered[one.name] = {"spec": msgspec.to_builtins(one.tool)}
        if one.expert is not None:
            # By which route it is asked decides nothing: an expert is the same on each.
            offered[one.name]["expert"] = one.expert.model_dump(mode="json", exclude={"native", "openrouter"})
            offered[one.name]["price"] = None if one.price is None else one.price.model_dump(mode="json")
    return MadeBy(
        # Weights are told by their hash, wherever they lie.
        policy=policy.model_dump(mode="json", exclude={"model", "adapter"} if policy.type == "local" else None),
        weights=weights,
        offered=offered,
        setup=opened.parts.model_dump(mode="json", exclude=_NOT_SETUP),
        instructions=content_id(prompt.SYSTEM),
        seed=plan.seed,
        max_steps=plan.max_steps,
    )


def record_path(groups: Path) -> Path:
    """Where the record of a file of groups is."""
    return groups.with_suffix(".run.json")


def begin(groups: Path, asked: MadeBy) -> None:
    """Write the record of a file of groups that holds none yet."""
    text = msgspec.json.format(dumps(msgspec.to_builtins(asked)), indent=2)
    write_text(record_path(groups), text + "\n", force=True)


def refuse_another(groups: Path, asked: MadeBy) -> None:
    """Raise ``IntegrityError`` unless what is in ``groups`` was made by ``asked``: it names all that differs."""
    path, fix = record_path(groups), "choose another --out, or pass --force to begin it anew"
    try:
        recorded = msgspec.json.decode(path.read_bytes(), type=MadeBy)
    except (OSError, msgspec.DecodeError) as error:
        why = "is not there" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
        raise IntegrityError(
            f"what its groups were made by is not known: {path} {why}; {fix}", path=str(groups)
        ) from None
    found = differences(_compared(recorded), _compared(asked))
    if found:
        lines = [f"  {field}: recorded {_short(before)}, asked {_short(now)}" for field, before, now in found]
        raise IntegrityError("\n".join([f"was made by another run; {fix}:", *lines]), path=str(groups))


def _compared(record: MadeBy) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(record)
    return fields | {name: _without_places(fields[name]) for name in ("policy", "setup")}


def _without_places(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_places(one) for name, one in value.items() if name not in MAY_DIFFER}
    return [_without_places(one) for one in value] if isinstance(value, list) else value


def _short(value: Any) -> str:
    text = "nothing" if value is None else dumps(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"
