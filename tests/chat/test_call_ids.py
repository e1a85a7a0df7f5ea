import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstchair.chat.call_ids import ID_RULES, CallIdMap
from firstchair.core.errors import DataError

IDS = st.lists(st.text(min_size=0, max_size=80), unique=True, max_size=20)


@given(IDS, st.sampled_from(sorted(ID_RULES)))
def test_ids_fit_the_provider_stay_apart_and_come_back(ids, provider):
    rule = ID_RULES[provider]
    there = CallIdMap(rule)
    made = [there.to_wire(call_id) for call_id in ids]
    assert len(set(made)) == len(ids)
    for call_id, wire_id in zip(ids, made, strict=True):
        assert re.fullmatch(rule.pattern, wire_id)
        assert there.from_wire(wire_id) == call_id
        assert there.to_wire(call_id) == wire_id
        if re.fullmatch(rule.pattern, call_id) and made.count(call_id) == 1:
            assert wire_id == call_id or call_id in made


def test_an_id_maps_the_same_whatever_came_before():
    first, second = CallIdMap(ID_RULES["mistral"]), CallIdMap(ID_RULES["mistral"])
    first.to_wire("call_other")
    assert first.to_wire("call_long_id") == second.to_wire("call_long_id")


def test_an_id_that_the_provider_made_stands_for_itself():
    ids = CallIdMap(ID_RULES["openai"])
    assert ids.from_wire("call_new") == "call_new"
    assert ids.to_wire("call_new") == "call_new"
    made = ids.to_wire("x" * 50)
    assert made != "x" * 50
    with pytest.raises(DataError, match="old to the session"):
        ids.from_wire("x" * 50)
