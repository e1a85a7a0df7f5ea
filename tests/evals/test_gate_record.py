import json

import msgspec
import pytest

from firstchair.core.errors import ConfigError
from firstchair.core.jsontext import content_id
from firstchair.evals.gate_record import SEAL, Gate, GateRecord, GateVerdict, opened, sealed
from firstchair.testing.gate_records import gate_record

RECORD = gate_record("local/small", "desk", template_hash="a" * 64)


def resealed(record):
    body = {name: value for name, value in record.items() if name != SEAL}
    return {**body, SEAL: content_id(body)}


def changed(**fields):
    return resealed({**RECORD, **fields})


def with_check(**fields):
    """The record with its first check changed."""
    gates = json.loads(json.dumps(RECORD["gates"]))
    gates[0]["checks"][0] |= fields
    return changed(gates=gates)


def test_a_sealed_record_is_read_back_as_it_was_written():
    text = json.dumps(RECORD, indent=2)
    found = opened(json.loads(text), "promotion")
    assert (found.passed, found.route, found.slot, found.template_hash) == (True, "local/small", "desk", "a" * 64)
    assert sealed(found) == RECORD


def test_every_value_that_is_changed_is_seen():
    paths = list(leaves(RECORD))
    assert len(paths) > 100
    for path in paths:
        broken = json.loads(json.dumps(RECORD))
        node = broken
        for key in path[:-1]:
            node = node[key]
        value = node[path[-1]]
        if isinstance(value, bool):
            node[path[-1]] = not value
        else:
            node[path[-1]] = value + 1 if isinstance(value, int | float) else f"{value}x"
        with pytest.raises(ConfigError):
            opened(broken, "promotion")


def leaves(value, path=()):
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*path, key))
    else:
        yield path


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"passed": True}, "gates.record_sha256: missing; expected a sealed record; write it with `firstchair gates"),
        ({**RECORD, "who": "bob"}, "gates.record_sha256: found '.*it was changed after it was sealed"),
        (changed(passed=False), "gates.passed: found False; its own figures give True"),
        (with_check(low=0.7), "gates.routing.routing.verdict: found pass; its own figures give undecided"),
        (with_check(bound=0.99), "gates.routing.routing.verdict: found pass; its own figures give fail"),
        (
            with_check(verdict="undecided"),
            "gates.routing.routing.verdict: found undecided; its own figures give pass",
        ),
        (with_check(rule="=="), "gates: not a record of the gates: Invalid enum value '=='"),
        (changed(gates=[]), "gates.gates: found none; expected routing, "),
        (changed(gates=[{**RECORD["gates"][0], "checks": []}, *RECORD["gates"][1:]]), "give undecided"),
        (changed(route=None), "gates: not a record of the gates: Expected `str`, got `null`"),
        (changed(extra=1), "unknown field `extra`"),
        (changed(kind="rl_readiness"), "gates.kind: found 'rl_readiness'; expected 'promotion'"),
        (changed(schema_version="0"), "gates.schema_version: found '0'; expected '1.0'"),
    ],
)
def test_a_record_that_does_not_add_up_is_refused(record, words):
    with pytest.raises(ConfigError, match=words):
        opened(record, "promotion")


def test_a_gate_that_was_not_run_does_not_pass():
    record = msgspec.convert({key: value for key, value in RECORD.items() if key != SEAL}, GateRecord)
    not_run = Gate(name="completion", verdict=GateVerdict.NOT_RUN, why="without episodes")
    gates = tuple(not_run if gate.name == "completion" else gate for gate in record.gates)
    for passed in (True, False):
        made = sealed(msgspec.structs.replace(record, gates=gates, passed=passed))
        if passed:
            with pytest.raises(ConfigError, match=r"gates\.passed: found True; its own figures give False"):
                opened(made, "promotion")
        else:
            assert opened(made, "promotion").gates[2].why == "without episodes"
