"""ToolScale (arXiv 2511.21689): users with a goal, the tool calls that reach it, and what they must be told.

What a user is told and the natural-language assertions become assertions for a judge; the golden actions stay in
``meta``, for environments that have those tools.
"""

from __future__ import annotations

from typing import Any

from firstchair.data.task_sources.fields import Fields, Unusable, items, section, task_id, text_of
from firstchair.rollout.orchestration.task import OrchestrationTask

NAME = "tool_scale"
DATASET = "ToolScale"
COLUMNS = ("id", "description", "user_scenario", "evaluation_criteria")
DOMAINS = ("tool_use",)


def task_of(row: Fields) -> OrchestrationTask:
    """A row as a task. Raises ``Unusable``, ``DataError``."""
    scenario = section(section(row, "user_scenario"), "instructions")
    problem = _problem(scenario)
    if not problem:
        raise Unusable("no question")
    criteria = section(row, "evaluation_criteria")
    info = [text.strip() for text in items(criteria, "communicate_info", str) if text.strip()]
    said = [text.strip() for text in items(criteria, "nl_assertions", str) if text.strip()]
    actions = [_action(action) for action in items(criteria, "actions", dict)]
    if not info and not said and not actions:
        raise Unusable("nothing to verify it by")
    return OrchestrationTask(
        task_id=task_id(NAME, problem),
        problem=problem,
        domain=DOMAINS[0],
        area=_text(scenario, "domain"),
        dataset=DATASET,
        assertions=(*(f"The user is told: {text}" for text in info), *said),
        meta={
            "source_id": row.get("id"),
            "golden_actions": actions,
            "communicate_info": info,
        },
    )


def _problem(scenario: Fields) -> str:
    """What the user knows and wants; what they do not know (``unknown_info``) is for a simulated user alone."""
    parts = [_text(scenario, name) for name in ("reason_for_call", "task_instructions", "known_info")]
    return "\n\n".join(part for part in parts if part)


def _text(scenario: Fields, name: str) -> str:
    return text_of(scenario, name) if name in scenario else ""


def _action(action: Fields) -> dict[str, Any]:
    """A golden call. The set has one column for every argument of every tool: null means that it is not given."""
    arguments = action.get("arguments") or {}
    return {"name": text_of(action, "name"), "arguments": _given(arguments)}


def _given(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _given(item) for name, item in value.items() if item is not None}
    return [_given(item) for item in value] if isinstance(value, list) else value
