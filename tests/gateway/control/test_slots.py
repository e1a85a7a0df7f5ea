import pytest
from pydantic import ValidationError

from firstchair.core.config import validate
from firstchair.core.errors import ConfigError
from firstchair.gateway.control.slots import (
    Canary,
    Retries,
    Route,
    ShadowRoute,
    SlotConfig,
    Timeouts,
    check_no_overlap,
    match_slot,
    promoted,
    read_route,
    route_chain,
)

CLAUDE = Route(provider="anthropic", model="claude-sonnet-4-6")
GPT = Route(provider="openai", model="gpt-5")
SMALL = Route(provider="local", model="small/4b")


def test_one_try_of_a_whole_answer_leaves_time_for_the_next_route():
    assert Timeouts(total_s=100).for_answer_s(is_last=False) == 50
    assert Timeouts(total_s=100).for_answer_s(is_last=True) == 100
    assert Timeouts(total_s=100, answer_s=70).for_answer_s(is_last=False) == 70
    assert Timeouts(total_s=100, answer_s=70).for_answer_s(is_last=True) == 70


def slot(name: str, *match: str, **fields: object) -> SlotConfig:
    return SlotConfig(**{"slot": name, "match": match, "primary": CLAUDE, **fields})


def test_a_slot_of_that_name_wins_then_a_plain_name_then_the_longest_glob():
    slots = [
        slot("all", "*"),
        slot("claude", "claude-*"),
        slot("sonnet", "claude-sonnet-*"),
        slot("pinned", "claude-sonnet-4-6"),
        slot("claude-opus-4-8"),
    ]
    for model, expected in {
        "claude-opus-4-8": "claude-opus-4-8",
        "claude-sonnet-4-6": "pinned",
        "claude-sonnet-5": "sonnet",
        "claude-haiku-4-5": "claude",
        "gpt-5": "all",
        "sonnet": "sonnet",
        "Claude-haiku": "all",
    }.items():
        for order in (slots, slots[::-1]):
            found = match_slot(order, model)
            assert found is not None
            assert found.slot == expected, model
    assert match_slot(slots[1:], "gpt-5") is None
    assert match_slot([], "gpt-5") is None


def test_a_plain_name_is_no_glob_and_stands_for_itself_alone():
    assert match_slot([slot("a", "gpt-4.1")], "gpt-4x1") is None
    assert match_slot([slot("a", "gpt-[45]")], "gpt-5").slot == "a"
    assert match_slot([slot("a", "gpt-*")], "my-gpt-5") is None


def test_two_slots_that_claim_one_name_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"slot b: match: 'gpt-\*' is already matched by slot a"):
        check_no_overlap([slot("b", "gpt-*"), slot("a", "gpt-*")])
    with pytest.raises(ConfigError, match="'a' is already matched"):
        check_no_overlap([slot("a"), slot("b", "a")])
    check_no_overlap([slot("a", "a", "x"), slot("b", "y")])


@pytest.mark.parametrize(
    ("fields", "where", "words"),
    [
        ({"canary": {"route": GPT, "percent": 101}}, "canary.percent", "less than or equal to 100"),
        ({"canary": {"route": GPT, "percent": -1}}, "canary.percent", "greater than or equal to 0"),
        ({"canary": {"route": CLAUDE, "percent": 1}}, "", "compared with itself"),
        ({"fallbacks": [GPT, CLAUDE]}, "", r"fallbacks\[1\] \(anthropic/claude-sonnet-4-6\) is tried before"),
        ({"fallbacks": [GPT, GPT]}, "", r"fallbacks\[1\] \(openai/gpt-5\) is tried before"),
        ({"shadow": [{"provider": "local", "model": "x"}, {"provider": "local", "model": "x"}]}, "", "billed twice"),
        ({"slot": "Big Slot"}, "slot", "beginning with a letter or digit"),
        ({"slot": "a\nb"}, "slot", "beginning with a letter or digit"),
        ({"match": ["x\r\ny"]}, "match.0", "printable"),
        ({"match": ["x", "x"]}, "match", "'x' stands twice"),
        ({"timeouts": {"first_token_s": 20, "total_s": 10}}, "timeouts", r"first_token_s \(20\) must not be above"),
        ({"timeouts": {"answer_s": 700}}, "timeouts", r"answer_s \(700\) must not be above"),
        ({"timeouts": {"connect_s": 0}}, "timeouts.connect_s", "greater than 0"),
        ({"counterfactual": "claude"}, "counterfactual", "expected PROVIDER/MODEL"),
        ({"fallback": []}, "fallback", "did you mean fallbacks"),
        ({"primary": {"provider": "../etc", "model": "m"}}, "primary.provider", "beginning with a letter or digit"),
    ],
)
def test_a_wrong_slot_is_refused_by_field(fields, where, words):
    good = {"slot": "a", "primary": CLAUDE.model_dump()}
    for name, value in list(fields.items()):
        if isinstance(value, list):
            fields[name] = [item.model_dump() if isinstance(item, Route) else item for item in value]
    with pytest.raises(ConfigError, match=words) as caught:
        validate(SlotConfig, good | fields, source="slot.yaml")
    assert f"  {where}" in str(caught.value)


def test_a_slot_goes_through_json_and_back_with_all_it_has():
    config = slot(
        "desk",
        "claude-*",
        fallbacks=(GPT,),
        shadow=(ShadowRoute(provider="local", model="x", percent=12.5),),
        canary=Canary(route=SMALL, percent=5),
        timeouts=Timeouts(total_s=99),
        retries=Retries(attempts=1),
        counterfactual="anthropic/claude-sonnet-4-6",
    )
    assert SlotConfig.model_validate_json(config.model_dump_json()) == config


def test_routes_read_and_print_alike():
    assert read_route("local/small/4b") == SMALL
    assert str(SMALL) == "local/small/4b"
    for text in ("", "local", "local/", "/x", "Lo cal/x", "local/ x"):
        with pytest.raises(ConfigError, match="expected PROVIDER/MODEL"):
            read_route(text)
    with pytest.raises(ValidationError):
        Route(provider="p", model="m").model = "n"


def test_a_canary_is_first_for_its_share_and_its_stand_ins_count_as_fallback():
    config = slot("a", fallbacks=(GPT,), canary=Canary(route=SMALL, percent=5))
    assert route_chain(config) == (("primary", CLAUDE), ("fallback", GPT))
    assert route_chain(config, canary=True) == (("canary", SMALL), ("fallback", CLAUDE), ("fallback", GPT))


def test_a_canary_at_zero_percent_is_never_tried_not_even_as_a_fallback():
    config = slot("a", fallbacks=(SMALL, GPT), canary=Canary(route=SMALL, percent=0))
    for drawn in (False, True):
        assert route_chain(config, canary=drawn) == (("primary", CLAUDE), ("fallback", GPT))


def test_a_canary_that_is_also_a_fallback_is_tried_once():
    config = slot("a", fallbacks=(SMALL, GPT), canary=Canary(route=SMALL, percent=50))
    assert [str(choice.route) for choice in route_chain(config, canary=True)] == [str(SMALL), str(CLAUDE), str(GPT)]


def test_promoting_keeps_the_incumbent_armed_and_remembers_what_it_cost():
    config = slot(
        "a",
        fallbacks=(GPT, SMALL),
        shadow=(ShadowRoute(provider="local", model="small/4b"), ShadowRoute(provider="local", model="other")),
        canary=Canary(route=SMALL, percent=10),
    )
    new = promoted(config, SMALL)
    assert new.primary == SMALL
    assert new.fallbacks == (CLAUDE, GPT)
    assert new.canary is None
    assert [str(shadow) for shadow in new.shadow] == ["local/other"]
    assert new.counterfactual == str(CLAUDE)
    assert promoted(new, GPT).counterfactual == str(CLAUDE)
    assert promoted(new, GPT).fallbacks == (SMALL, CLAUDE)
    with pytest.raises(ConfigError, match="already the primary"):
        promoted(new, SMALL)
