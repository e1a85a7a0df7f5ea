"""One decision, one reply, one verdict: pure code, no model.

    reply ──► obtained? ──► readable? ──► equal to gold, byte for byte? ──► pass (strict and lenient)
                │              │            a recorded mistake? ───────────► known_bad_repeated
              error        malformed        gold or an accept[] alternative
                                            by schema and matchers? ───────► pass (lenient)
                                            else kind, tools, arguments ───► premature_stop … wrong_args

Every result names the rule that decided and the field where, so that a reviewer can dispute it. A mismatch that
only a judge or a person can settle is marked ``undecided``: it never passes, and it is not called wrong either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import is_
from typing import Any, NamedTuple

import msgspec

from firstchair.catalog.call_rules import Matchers
from firstchair.catalog.compare import Comparison, Difference, Shape, best_assignment, compare, compile_shape
from firstchair.catalog.fields import ROOT, FieldRules, parse_field
from firstchair.catalog.matchers import Match, parse_matcher, typed_equal
from firstchair.chat.actions import Action, ParsedReply
from firstchair.chat.messages import Tool
from firstchair.chat.schema_check import check_arguments
from firstchair.core.errors import DataError
from firstchair.traces.decisions import Accepted, DecisionPoint

SCORER_VERSION = "1"
"""Raised whenever a rule changes a verdict, so that runs scored by other rules are never compared unseen."""


class Verdict(StrEnum):
    """Exactly one per decision and level."""

    PASS = "pass"
    WRONG_ARGS = "wrong_args"
    """Right tool, arguments do not match."""
    WRONG_TOOL = "wrong_tool"
    """A tool call, but not gold's tool."""
    PREMATURE_STOP = "premature_stop"
    """Final reply where gold calls a tool."""
    FAILED_TO_STOP = "failed_to_stop"
    """Tool call where gold gives the final reply."""
    MALFORMED = "malformed"
    """Not the declared syntax, or arguments that are not valid JSON for the schema, or cut off."""
    KNOWN_BAD_REPEATED = "known_bad_repeated"
    ERROR = "error"
    """No action obtained (engine failure, context overflow): counted apart, never as a model failure."""


class Scored(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The verdict on one reply at both levels that code can decide."""

    strict: Verdict
    lenient: Verdict
    rule: str
    """What decided the lenient verdict: ``equal``, ``stop``, ``accept``, a matcher, ``numeric``, ``default``, …"""
    field: str | None = None
    """Field path below the arguments where that rule applied; ``None`` when it concerns the whole action."""
    fields: tuple[str, ...] = ()
    """Every field that differs, for a failed comparison of arguments."""
    undecided: bool = False
    """Nothing speaks definitely against the reply; a judge or a person must say. Never a pass here."""
    alternative: int | None = None
    """Which ``accept[]`` entry made it pass."""
    extra_calls: int = 0
    """Harmless read-only calls beside the wanted ones."""


NO_REPLY = Scored(strict=Verdict.ERROR, lenient=Verdict.ERROR, rule="no_action")

_UNREADABLE = frozenset({"malformed_json", "unclosed_call", "truncated"})
"""Problems after which the action must not be read further; a schema violation still can be compared with gold."""


@dataclass(frozen=True)
class _Call:
    """A wanted call, made ready once: its text, its value and its comparer."""

    name: str
    text: str
    value: dict[str, Any]
    shape: Shape


@dataclass(frozen=True)
class _Wanted:
    """An action to compare with; no calls is a final reply."""

    calls: tuple[_Call, ...]
    names: tuple[str, ...]
    texts: tuple[str, ...]
    """The argument texts."""
    text: str


@dataclass(frozen=True)
class _Compiled:
    decision: DecisionPoint
    gold: _Wanted
    accept: tuple[_Wanted, ...]
    known_bad: tuple[_Wanted, ...]


class _Made(NamedTuple):
    """The reply's calls: names after the recorded map, and argument objects; both empty for a final reply."""

    names: tuple[str, ...]
    values: list[dict[str, Any]]


class Scorer:
    """Scores many replies against decisions that share tools and matchers; compiles each of them once."""

    def __init__(self, tools: Sequence[Tool], matchers: Matchers | None = None):
        self.matchers = matchers or Matchers()
        self._tools = {tool.name: tool for tool in tools}
        self._shapes: dict[str, Shape] = {}
        self._plain: dict[str, Shape] = {}
        self._compiled: dict[str, _Compiled] = {}

    def score(self, decision: DecisionPoint, reply: ParsedReply | Action | None) -> Scored:
        """The verdict on ``reply``; ``None`` means that no action was obtained.

        Raises ``DataError`` when gold itself cannot be read.
        """
        if reply is None:
            return NO_REPLY
        compiled = self._compiled.get(decision.dp_id)
        if compiled is None or compiled.decision is not decision:
            compiled = self._compiled[decision.dp_id] = self._compile(decision)
        violated: str | None = None
        if isinstance(reply, ParsedReply) and reply.problems:
            for problem in reply.problems:
                if problem.kind in _UNREADABLE:
                    return _malformed(problem.kind)
                if problem.kind == "schema_violation":
                    violated = violated or _field_of(problem.path or "")
        return self._verdict(compiled, reply, violated)

    def _verdict(self, compiled: _Compiled, reply: ParsedReply | Action, violated: str | None) -> Scored:
        calls, gold = reply.calls, compiled.gold
        if not calls and not gold.calls:
            return self._stopped(compiled, reply.text)
        renames = self.matchers.tool_names
        names = tuple([call.name for call in calls])
        if renames:
            names = tuple([renames.get(name, name) for name in names])
        same_tools = names == gold.names
        # Equal texts are the common case of a good model: no parsing at all.
        if same_tools and tuple([call.arguments for call in calls]) == gold.texts:
            return _EQUAL
        values: list[dict[str, Any]] = []
        for call in calls:
            value = call.parsed()
            if value is None:
                return _malformed("malformed_json")
            values.append(value)
        # Equal values have equal canonical texts, and comparing is quicker than writing them.
        if same_tools and all(
            typed_equal(value, wanted.value) for value, wanted in zip(values, gold.calls, strict=True)
        ):
            return _EQUAL
        if violated is None and not isinstance(reply, ParsedReply):
            violated = self._violation(names, values)
        if violated is not None:
            return _malformed("schema_violation", violated)
        return self._unequal(compiled, _Made(names, values))

    def _stopped(self, compiled: _Compiled, text: str) -> Scored:
        for bad in compiled.known_bad:
            if not bad.calls and bad.text.split() == text.split() != compiled.gold.text.split():
                return _KNOWN_BAD
        return _STOP

    def _unequal(self, compiled: _Compiled, made: _Made) -> Scored:
        for bad in compiled.known_bad:
            if _repeats(bad, made):
                return _KNOWN_BAD
        base, first = _weigh(compiled.gold, made, self.matchers)
        match = first.match
        if match is Match.SAME:
            return _lenient_pass(base, first, None, len(made.names) - len(compiled.gold.calls))
        undecided = match is Match.UNDECIDED
        for index, other in enumerate(compiled.accept):
            _, found = _weigh(other, made, self.matchers)
            if found.match is Match.SAME:
                return _lenient_pass(base, found, index, max(0, len(made.names) - len(other.calls)))
            undecided = undecided or found.match is Match.UNDECIDED
        leading = next((found for found in first.differences if not found.undecided), first.differences[0])
        return Scored(
            strict=base,
            lenient=base,
            rule=leading.rule,
            field=leading.field or None,
            fields=tuple(dict.fromkeys(found.field for found in first.differences if found.field)),
            undecided=undecided,
        )

    def _violation(self, names: Sequence[str], values: Sequence[dict[str, Any]]) -> str | None:
        for name, value in zip(names, values, strict=True):
            tool = self._tools.get(name)
            fault = check_arguments(tool.parameters, value) if tool else None
            if fault is not None:
                return _field_of(fault.path)
        return None

    def _shape(self, name: str, rules: FieldRules | None, cache: dict[str, Shape]) -> Shape:
        found = cache.get(name)
        if found is None:
            tool = self._tools.get(name)
            found = cache[name] = compile_shape(tool.parameters if tool else {}, rules)
        return found

    def _compile(self, decision: DecisionPoint) -> _Compiled:
        gold = decision.gold or decision.observed
        fields = self.matchers.fields

        def ruled(name: str) -> Shape:
            return self._shape(name, fields.get(name), self._shapes)

        def plain(name: str) -> Shape:
            return self._shape(name, None, self._plain)

        def loosened(option: Accepted) -> Any:
            def shape(name: str) -> Shape:
                rules = FieldRules()
                overlay(rules, fields.get(name))
                for path, spec in option.matchers.items():
                    rules.add(parse_field(path), parse_matcher(spec))
                tool = self._tools.get(name)
                return compile_shape(tool.parameters if tool else {}, rules)

            return shape if option.matchers else ruled

        accept = tuple(_wanted(option.action or gold, loosened(option), decision.dp_id) for option in decision.accept)
        known_bad = tuple(
            wanted for action in decision.known_bad if (wanted := _wanted_if_readable(action, plain)) is not None
        )
        return _Compiled(decision, _wanted(gold, ruled, decision.dp_id), accept, known_bad)


def overlay(rules: FieldRules, base: FieldRules | None) -> None:
    """Copy ``base`` into the empty ``rules``, so that more can be added without touching ``base``."""
    if base is None:
        return
    rules.matcher = base.matcher
    for key, child in base.keys.items():
        overlay(rules.keys.setdefault(key, FieldRules()), child)
    for name in ("any_key", "items"):
        child = getattr(base, name)
        if child is not None:
            copy = FieldRules()
            overlay(copy, child)
            setattr(rules, name, copy)


def _field_of(json_path: str) -> str:
    """``$.items[0].name`` as a field path."""
    return json_path.removeprefix("$").removeprefix(".") or ROOT


def _wanted(action: Action, shape: Any, dp_id: str) -> _Wanted:
    wanted = _wanted_if_readable(action, shape)
    if wanted is None:
        raise DataError(
            "the gold call's arguments are not a JSON object; correct the decision before it is frozen", field=dp_id
        )
    return wanted


def _wanted_if_readable(action: Action, shape: Any) -> _Wanted | None:
    calls: list[_Call] = []
    for call in action.calls:
        value = call.parsed()
        if value is None:
            return None
        calls.append(_Call(call.name, call.arguments, value, shape(call.name)))
    names, texts = tuple(call.name for call in calls), tuple(call.text for call in calls)
    return _Wanted(tuple(calls), names, texts, action.text)


def _repeats(bad: _Wanted, made: _Made) -> bool:
    """Whether the reply is this recorded mistake. A recorded early stop is repeated by stopping."""
    if bad.names != made.names and Counter(bad.names) != Counter(made.names):
        return False
    return not bad.names or _assign(bad, made).match is Match.SAME


def _weigh(wanted: _Wanted, made: _Made, rules: Matchers) -> tuple[Verdict, Comparison]:
    """The verdict that holds unless the comparison says ``SAME``, and the lenient comparison."""
    if not wanted.names:
        if not made.names:
            return Verdict.PASS, Comparison(used=[("stop", "")])
        return Verdict.FAILED_TO_STOP, _whole("action")
    if not made.names:
        return Verdict.PREMATURE_STOP, _whole("action")
    if wanted.names == made.names:
        return Verdict.WRONG_ARGS, _assign(wanted, made)
    return _other_tools(wanted, made, rules)


def _other_tools(wanted: _Wanted, made: _Made, rules: Matchers) -> tuple[Verdict, Comparison]:
    if len(wanted.names) == len(made.names) == 1:
        return Verdict.WRONG_TOOL, _whole("tool")
    missing = Counter(wanted.names) - Counter(made.names)
    extra = Counter(made.names) - Counter(wanted.names)
    if not missing and not extra:
        return Verdict.WRONG_ARGS, _assign(wanted, made)
    known = set(made.names) <= set(wanted.names)
    verdict = Verdict.WRONG_ARGS if known else Verdict.WRONG_TOOL
    if not missing and set(extra) <= rules.read_only and extra.total() <= rules.extra_read_only:
        found = _assign(wanted, made)
        found.used.append(("extra_read_only", ""))
        return verdict, found
    if known and _judged(wanted):
        # Other calls of a tool whose effect only a sandbox or a judge can compare: unscored, not wrong.
        return verdict, _whole("judge", undecided=True)
    if not known:
        return verdict, _whole("tool")
    return verdict, _whole("missing_call" if missing else "extra_call")


def _judged(wanted: _Wanted) -> bool:
    return all(call.shape.matcher is not None and call.shape.matcher.name == "judge" for call in wanted.calls)


def _whole(rule: str, *, undecided: bool = False) -> Comparison:
    return Comparison(differences=[Difference("", rule, undecided=undecided)])


def _assign(wanted: _Wanted, made: _Made) -> Comparison:
    """Pair wanted calls with made calls of the same tool, one to one, at the least difference."""
    if len(wanted.calls) == len(made.values) == 1:
        return compare(wanted.calls[0].shape, wanted.calls[0].value, made.values[0])
    other = Comparison(differences=[Difference("", "tool")] * 100)
    grid = [
        [
            compare(call.shape, call.value, value) if name == call.name else other
            for name, value in zip(made.names, made.values, strict=True)
        ]
        for call in wanted.calls
    ]
    pairs = best_assignment(grid)
    out = Comparison()
    for row, column in pairs:
        out.differences += grid[row][column].differences
        out.used += grid[row][column].used
    if any(row != column for row, column in pairs):
        out.used.append(("call_order", ""))
    return out


def _lenient_pass(base: Verdict, found: Comparison, index: int | None, extra_calls: int) -> Scored:
    """A pass that is not byte-equal: the strict verdict stands beside it."""
    rule, field = found.used[0] if found.used else ("equal", "")
    return Scored(
        strict=base,
        lenient=Verdict.PASS,
        rule="accept" if index is not None else rule,
        field=field or None,
        alternative=index,
        extra_calls=extra_calls,
    )


def _malformed(rule: str, field: str | None = None) -> Scored:
    return Scored(strict=Verdict.MALFORMED, lenient=Verdict.MALFORMED, rule=rule, field=field)


_EQUAL = Scored(strict=Verdict.PASS, lenient=Verdict.PASS, rule="equal")
_STOP = Scored(strict=Verdict.PASS, lenient=Verdict.PASS, rule="stop")
_KNOWN_BAD = Scored(strict=Verdict.KNOWN_BAD_REPEATED, lenient=Verdict.KNOWN_BAD_REPEATED, rule="known_bad")


def score(
    decision: DecisionPoint,
    reply: ParsedReply | Action | None,
    matchers: Matchers | Mapping[str, Mapping[str, str]],
    tools: Sequence[Tool],
) -> Scored:
    """Score one reply; the result depends on the arguments alone.

    What was compiled for the last matchers and tools is kept and used again while they are the same. A loop over
    several catalogs should hold one ``Scorer`` for each.
    """
    global _last
    if _last is None or not _last.serves(matchers, tools):
        _last = _Compilation(matchers, tools)
    return _last.scorer.score(decision, reply)


class _Compilation:
    """A scorer and what it was made from: frozen things by identity, a plain table of matchers by value."""

    def __init__(self, matchers: Matchers | Mapping[str, Mapping[str, str]], tools: Sequence[Tool]):
        self.tools = tuple(tools)
        self.compiled = matchers if isinstance(matchers, Matchers) else None
        self.declared = None if isinstance(matchers, Matchers) else {key: dict(row) for key, row in matchers.items()}
        self.scorer = Scorer(tools, self.compiled or Matchers.of(self.declared or {}))

    def serves(self, matchers: Matchers | Mapping[str, Mapping[str, str]], tools: Sequence[Tool]) -> bool:
        """Whether the scorer gives what a new one for these arguments would."""
        if isinstance(matchers, Matchers):
            if matchers is not self.compiled:
                return False
        elif matchers != self.declared:
            return False
        return len(tools) == len(self.tools) and all(map(is_, tools, self.tools))


_last: _Compilation | None = None
