"""RL-readiness: what must hold before a model is reinforced, or RL reinforces inconsistency.

catalog ──────────────► labels    the routing policy contradicts neither itself nor the catalog
golden set ───────────► golden    frozen, every check of `golden verify` holds, compared with the training data
runs ─────────────────► routing   kind of action, right tool (above a floor and above the baseline), skills
trainer and server ───► parity    one prompt on both sides, by the template that the candidate was scored with
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from firstchair.catalog.catalog import Catalog
from firstchair.catalog.lint import lint_catalog
from firstchair.core.errors import ConfigError
from firstchair.core.jsontext import content_id
from firstchair.data.golden import GoldenSet
from firstchair.data.golden.verify import Checked
from firstchair.evals.gate_checks import (
    Sides,
    answered_check,
    counted,
    gate_of,
    left_out,
    metric_rate,
    metric_sides,
    points_check,
    rate_check,
    row_pairs,
    rows_left_out,
)
from firstchair.evals.gate_record import GATES, Check, Gate
from firstchair.evals.gate_thresholds import Thresholds
from firstchair.evals.gates import RUN, Need, missing
from firstchair.evals.routing import SKILL_TOOLS, gold_routes, skill_became_tool
from firstchair.evals.run_record import DecisionRow
from firstchair.evals.stats import careful_rate


@dataclass(frozen=True)
class Parity:
    """What a comparison of prompts found (``firstchair parity --json``)."""

    template_hash: str
    other: str
    """The other side: a server, or ``apply_chat_template`` in process."""
    prompts: int
    differing: int
    """But for those that differ on purpose."""


@dataclass(frozen=True)
class Readiness:
    """What the gates look at. ``None``: not given."""

    candidate: Sequence[DecisionRow]
    template_hash: str
    """That the candidate's prompts were rendered with."""
    golden: GoldenSet
    checked: Sequence[Checked]
    """What ``verify`` says of ``golden``."""
    baseline: Sequence[DecisionRow] | None = None
    catalog: Catalog | None = None
    parity: Parity | None = None


NEEDS: Mapping[str, tuple[Need, ...]] = MappingProxyType(
    {
        "labels": (
            Need(
                "catalog",
                "the catalog that the golden set was frozen under",
                "--catalog FILE",
                "firstchair catalog infer FILE, then a person adds the policy",
            ),
        ),
        "golden": (),
        "routing": (RUN,),
        "parity": (
            Need(
                "parity",
                "a comparison of prompts",
                "--parity FILE (or --model DIR to compare here)",
                "firstchair parity --model DIR --base-url URL --json > FILE",
            ),
        ),
    }
)
"""What each gate looks at beside the candidate's run and its golden set."""


def rl_ready_gates(
    readiness: Readiness, thresholds: Thresholds, *, seed: int = 0, allow_missing: Collection[str] = ()
) -> tuple[Gate, ...]:
    """All gates of RL-readiness, in the order of ``GATES``; raises ``ConfigError`` as ``six_gates`` does."""
    not_run = missing(readiness, NEEDS, "rl_readiness", allow_missing)
    run = {
        "labels": lambda: _labels(readiness),
        "golden": lambda: _golden(readiness),
        "routing": lambda: _routing(readiness, thresholds, seed),
        "parity": lambda: _parity(readiness),
    }
    return tuple(not_run.get(name) or run[name]() for name in GATES["rl_readiness"])


def _labels(readiness: Readiness) -> Gate:
    catalog = readiness.catalog
    assert catalog is not None
    frozen_under = readiness.golden.manifest.catalog.get("sha256")
    if content_id(catalog.model_dump(mode="json")) != frozen_under:
        raise ConfigError(
            f"--catalog: {catalog.name!r} is not the catalog that the golden set was frozen under "
            f"({readiness.golden.manifest.catalog.get('name')!r}, {str(frozen_under)[:12]}…); give that one, or "
            "freeze the set under this one"
        )
    findings = lint_catalog(catalog)
    errors = [finding for finding in findings if finding.severity == "error"]
    rows = len(catalog.policy.rows) if catalog.policy else 0
    first = f"{errors[0].place}: {errors[0].message}" if errors else ""
    checks = [
        counted("policy_rows", rows, rows, ">=", 1, note="" if rows else "the catalog has no routing policy"),
        counted("policy_errors", len(errors), rows, "<=", 0, note=first),
    ]
    return gate_of("labels", checks)


def _golden(readiness: Readiness) -> Gate:
    manifest = readiness.golden.manifest
    problems = [f"{check.name}: {problem}" for check in readiness.checked for problem in check.problems]
    against = manifest.leakage.get("against", [])
    leaks = sum(part["pairs"] for part in against)
    names = ", ".join(f"{part['name']} ({part['sessions']} sessions)" for part in against)
    none = "compared with no training data; freeze it with `golden freeze --against DATA`"
    decisions = len(readiness.golden.decisions)
    checks = [
        counted("problems", len(problems), decisions, "<=", 0, note=problems[0] if problems else ""),
        counted("compared_with", len(against), len(against), ">=", 1, note=names or none),
        counted("leaks", leaks, sum(part["sessions"] for part in against), "<=", 0),
    ]
    return gate_of("golden", checks)


def _routing(readiness: Readiness, thresholds: Thresholds, seed: int) -> Gate:
    rows, before, bounds = readiness.candidate, readiness.baseline or (), thresholds.rl_ready
    sides: Sides = metric_sides(row_pairs(before, rows), "tool_name")
    checks = [
        rate_check("action_type", metric_rate(rows, "action_type", seed), ">=", bounds.action_type),
        rate_check("tool_name", metric_rate(rows, "tool_name", seed), ">", bounds.tool_name),
        points_check("tool_name_gain", sides, ">", 0.0, seed=seed),
        answered_check("candidate", rows, thresholds.max_failed),
        answered_check("baseline", before, thresholds.max_failed),
    ]
    excluded = [*rows_left_out("candidate", rows), *rows_left_out("baseline", before)]
    offered = {tool.name for row in readiness.golden.catalogs.values() for tool in row.tools}
    if offered & SKILL_TOOLS:
        checks.insert(3, _skills(rows, bounds.skill_to_tool, seed))
    else:
        excluded += left_out("skill_to_tool", {"the golden set offers no skill": 1})
    return gate_of("routing", checks, excluded)


def _skills(rows: Sequence[DecisionRow], most: float, seed: int) -> Check:
    answered = [row for row in rows if row.obtained]
    skill = [float(bool(gold_routes(row) & SKILL_TOOLS)) for row in answered]
    direct = [float(skill_became_tool(row)) for row in answered]
    found = careful_rate(direct, skill, [row.session_id for row in answered], seed=seed)
    return rate_check("skill_to_tool", found, "<", most)


def _parity(readiness: Readiness) -> Gate:
    parity = readiness.parity
    assert parity is not None
    same = parity.template_hash == readiness.template_hash
    other = (
        f"found {parity.template_hash[:12]}…, the candidate was scored with {readiness.template_hash[:12] or '–'}…"
    )
    checks = [
        counted("prompts", parity.prompts, parity.prompts, ">=", 1, note=f"against {parity.other}"),
        counted("differing_prompts", parity.differing, parity.prompts, "<=", 0),
        counted("other_template", float(not same), parity.prompts, "<=", 0, note="" if same else other),
    ]
    return gate_of("parity", checks)
