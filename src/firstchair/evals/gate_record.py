"""The record of the gates: every figure with its interval and its bound, what went in, and a seal over all of it.

A record is believed only as far as it can be worked out again: each check's verdict from its interval, each gate's
from its checks, ``passed`` from the gates; and ``record_sha256`` is the hash of everything else. The seal shows that
a record was changed, by accident or by hand. It is no signature: who may write records may write a sealed one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from firstchair.core.errors import ConfigError
from firstchair.core.jsontext import content_id, dumps, loads

SCHEMA_VERSION = "1.0"
SEAL = "record_sha256"

Kind = Literal["promotion", "rl_readiness"]
GATES: Mapping[Kind, tuple[str, ...]] = MappingProxyType(
    {
        "promotion": ("routing", "argument_quality", "completion", "recovery", "stop", "cost_latency"),
        "rl_readiness": ("labels", "golden", "routing", "parity"),
    }
)
"""The gates that a record of each kind holds, in this order."""
COMMANDS: Mapping[Kind, str] = MappingProxyType(
    {"promotion": "firstchair gates check", "rl_readiness": "firstchair gates rl-ready"}
)

Rule = Literal[">=", ">", "<=", "<"]
Unit = Literal["share", "points", "usd", "count"]
"""``share`` is of 1, ``points`` a difference of two shares, ``usd`` a difference of two amounts."""


class GateVerdict(StrEnum):
    """What the figures show. Only ``pass`` passes."""

    PASS = "pass"
    """The whole interval keeps to the bound."""
    FAIL = "fail"
    """The whole interval breaks it."""
    UNDECIDED = "undecided"
    """The bound lies inside the interval: too few samples to say."""
    NOT_RUN = "not_run"
    """An input is missing, which somebody allowed."""


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Frozen, complete JSON."""


class Check(_Record, frozen=True, kw_only=True):
    """One figure against one bound."""

    metric: str
    of: str = ""
    """The tool it is about, where there is one for each."""
    value: float | None
    """``None``: nothing to measure it on."""
    low: float | None
    """95% interval; both ends are ``value`` for what was counted and not sampled."""
    high: float | None
    n: int
    method: str
    unit: Unit = "share"
    rule: Rule
    bound: float
    verdict: GateVerdict
    needed: int | None = None
    """Where undecided: about how many samples would decide it; ``None``: that cannot be told."""
    note: str = ""


class Excluded(_Record, frozen=True, kw_only=True):
    """What counts in no figure of a gate, and why."""

    what: str
    reason: str
    count: int


class Gate(_Record, frozen=True, kw_only=True):
    """One gate."""

    name: str
    verdict: GateVerdict
    checks: tuple[Check, ...] = ()
    excluded: tuple[Excluded, ...] = ()
    why: str = ""
    """Why it was not run."""


class Scored(_Record, frozen=True, kw_only=True):
    """A replay run that went in."""

    path: str
    model: str
    adapter: str
    revision: str
    """Of the weights."""
    engine: str
    template_hash: str
    decisions: int
    run_sha256: str
    """Of ``run.json``."""
    rows_sha256: str
    """Of ``decisions.jsonl``."""


class Input(_Record, frozen=True, kw_only=True):
    """A file or a table that went in."""

    name: str
    path: str
    sha256: str
    """Of the file's bytes; of a part of the ledger, of the rows that were used."""
    details: dict[str, Any] = {}


class GoldenUsed(_Record, frozen=True, kw_only=True):
    """The golden set."""

    name: str
    set_sha256: str
    sessions: int
    decisions: int


class GateRecord(_Record, frozen=True, kw_only=True):
    """What ``gates check`` and ``gates rl-ready`` write, before the seal."""

    kind: Kind
    passed: bool
    route: str = ""
    """``provider/model`` that the promotion is for; empty in a record of RL-readiness, as is ``slot``."""
    slot: str = ""
    template_hash: str
    """How the candidate's prompts were rendered; empty when its server rendered them itself."""
    gates: tuple[Gate, ...]
    golden: GoldenUsed
    candidate: Scored
    baseline: Scored | None
    served_differently: tuple[str, ...] = ()
    """In what the two runs' serving differs, where that was allowed."""
    inputs: tuple[Input, ...]
    thresholds: dict[str, Any]
    thresholds_sha256: str
    seed: int
    """Of the bootstrap."""
    scorer_version: str
    code_version: str
    created_at: str
    """ISO 8601, UTC."""
    who: str
    schema_version: str = SCHEMA_VERSION


# --- verdicts ---------------------------------------------------------------------------------------------------


def verdict_of(rule: Rule, bound: float, value: float | None, low: float | None, high: float | None) -> GateVerdict:
    """What an interval shows of a rule: kept by all of it, broken by all of it, or neither."""
    if value is None or low is None or high is None:
        return GateVerdict.UNDECIDED
    # A percentile interval of a skewed ratio may miss its own point.
    least, most = min(low, value), max(high, value)
    worst, best = (least, most) if rule in (">=", ">") else (most, least)
    if _keeps(worst, rule, bound):
        return GateVerdict.PASS
    return GateVerdict.UNDECIDED if _keeps(best, rule, bound) else GateVerdict.FAIL


def _keeps(figure: float, rule: Rule, bound: float) -> bool:
    if rule == ">=":
        return figure >= bound
    if rule == ">":
        return figure > bound
    return figure <= bound if rule == "<=" else figure < bound


def gate_verdict(checks: Sequence[Check]) -> GateVerdict:
    """A gate passes when every check passes, and fails when one fails. Without a check nothing was shown."""
    verdicts = {check.verdict for check in checks}
    if GateVerdict.FAIL in verdicts:
        return GateVerdict.FAIL
    return GateVerdict.PASS if verdicts == {GateVerdict.PASS} else GateVerdict.UNDECIDED


def all_passed(gates: Sequence[Gate]) -> bool:
    """Whether every gate passed."""
    return bool(gates) and all(gate.verdict is GateVerdict.PASS for gate in gates)


# --- the seal ---------------------------------------------------------------------------------------------------


def sealed(record: GateRecord) -> dict[str, Any]:
    """The record as JSON with its content hash."""
    # Through its text: what is read back from the file must be this value.
    body: dict[str, Any] = loads(dumps(msgspec.to_builtins(record)))
    return {**body, SEAL: content_id(body)}


def opened(data: Mapping[str, Any], kind: Kind) -> GateRecord:
    """The record in ``data``, every verdict worked out again. Raises ``ConfigError`` naming what does not hold."""
    body = {name: value for name, value in data.items() if name != SEAL}
    again = f"write it with `{COMMANDS[kind]}`"
    if SEAL not in data:
        raise ConfigError(f"gates.{SEAL}: missing; expected a sealed record; {again}")
    if data[SEAL] != (found := _hash(body)):
        raise ConfigError(
            f"gates.{SEAL}: found {data[SEAL]!r}; the record's content has {found!r}: it was changed after it was "
            f"sealed; {again} again"
        )
    if body.get("schema_version") != SCHEMA_VERSION:
        raise ConfigError(
            f"gates.schema_version: found {body.get('schema_version')!r}; expected {SCHEMA_VERSION!r}; {again}"
        )
    try:
        record = msgspec.convert(body, GateRecord)
    except msgspec.ValidationError as error:
        raise ConfigError(f"gates: not a record of the gates: {error}; {again}") from None
    if record.kind != kind:
        raise ConfigError(f"gates.kind: found {record.kind!r}; expected {kind!r}; {again}")
    _check_sums(record)
    return record


def _hash(body: Mapping[str, Any]) -> str:
    try:
        return content_id(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"gates: not JSON that can be hashed: {error}") from None


def _check_sums(record: GateRecord) -> None:
    """Raise ``ConfigError`` where a verdict is not what its figures give."""
    names = tuple(gate.name for gate in record.gates)
    if names != GATES[record.kind]:
        raise ConfigError(
            f"gates.gates: found {', '.join(names) or 'none'}; expected {', '.join(GATES[record.kind])}"
        )
    for gate in record.gates:
        for check in gate.checks:
            given = verdict_of(check.rule, check.bound, check.value, check.low, check.high)
            _agree(f"{gate.name}.{check.metric}.verdict", check.verdict, given)
        if gate.verdict is GateVerdict.NOT_RUN and not gate.checks:
            continue
        _agree(f"{gate.name}.verdict", gate.verdict, gate_verdict(gate.checks))
    _agree("passed", record.passed, all_passed(record.gates))


def _agree(field: str, found: object, given: object) -> None:
    if found != given:
        raise ConfigError(
            f"gates.{field}: found {_shown(found)}; its own figures give {_shown(given)}; run the gates again"
        )


def _shown(value: object) -> str:
    return str(value) if isinstance(value, StrEnum) else repr(value)
