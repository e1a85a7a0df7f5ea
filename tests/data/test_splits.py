from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstchair.core.errors import ConfigError, DataError, IntegrityError
from firstchair.data.splits import Member, member_of, part_ids, read_split, split, write_split
from firstchair.testing.sessions import trip_session

HALVES = {"train": 0.5, "heldout": 0.5}
EIGHTY = {"train": 0.8, "heldout": 0.2}


def members(*rows: tuple[str, str]) -> list[Member]:
    return [
        Member(session_id=str(number), group=group, stratum=stratum) for number, (group, stratum) in enumerate(rows)
    ]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from("abc")), min_size=30, max_size=60),
    st.integers(0, 5),
    st.randoms(use_true_random=False),
)
def test_groups_never_straddle_and_order_does_not_matter(rows, seed, random):
    own = members(*[(str(group), stratum) for group, stratum in rows])
    if len({member.group for member in own}) < 4:
        return
    parts = split(own, HALVES, seed)
    groups = [{member.group for member in part} for part in parts.values()]
    assert not groups[0] & groups[1]
    assert sorted(int(m.session_id) for part in parts.values() for m in part) == list(range(len(own)))
    shuffled = random.sample(own, len(own))
    again = split(shuffled, HALVES, seed)
    assert {p: {m.session_id for m in own} for p, own in again.items()} == {
        p: {m.session_id for m in own} for p, own in parts.items()
    }


def test_each_stratum_keeps_its_share():
    own = members(*[(f"g{number}", "rare" if number % 10 == 0 else "common") for number in range(500)])
    parts = split(own, EIGHTY, seed=3)
    counts = {part: Counter(member.stratum for member in own) for part, own in parts.items()}
    assert counts["train"] == {"common": 360, "rare": 40}
    assert counts["heldout"] == {"common": 90, "rare": 10}


def test_many_strata_of_one_group_do_not_all_fall_to_the_large_part():
    parts = split(members(*[(f"g{number}", f"s{number:02}") for number in range(20)]), EIGHTY, seed=0)
    assert len(parts["heldout"]) == 4


def test_another_seed_gives_another_split():
    own = members(*[(f"g{number}", "a") for number in range(40)])
    assert split(own, HALVES, 0) != split(own, HALVES, 1)


def test_falsy_labels_are_values_and_missing_ones_are_unknown():
    found = {}
    for label in (0, "0", False, "False", 0.0, "", None):
        found[repr(label)] = member_of(trip_session(1, labels={"reward": label}), "", "reward").stratum
    assert found == {
        "0": "0",
        "'0'": "0",
        "False": "false",
        "'False'": "False",
        "0.0": "0.0",
        "''": "UNKNOWN",
        "None": "UNKNOWN",
    }
    assert member_of(trip_session(1, labels={}), "task_id", "reward").stratum == "UNKNOWN"
    assert member_of(trip_session(1, labels={"task_id": 0}), "task_id").group == "0"
    assert member_of(trip_session(1, labels={}), "task_id").group == "session trip-1"


@pytest.mark.parametrize(
    ("fractions", "reason"),
    [
        ({"train": 1.0}, "at least two parts"),
        ({"train": 0.8, "heldout": 0.3}, "add up to 1.1"),
        ({"train": 1.2, "heldout": -0.2}, "between 0 and 1"),
        ({"../train": 0.8, "heldout": 0.2}, "file name"),
    ],
)
def test_bad_fractions_are_refused(fractions, reason):
    with pytest.raises(ConfigError, match=reason):
        split(members(("a", "x"), ("b", "x")), fractions, 0)


def test_an_empty_part_and_a_double_id_are_refused():
    with pytest.raises(ConfigError, match="'heldout' would be empty: 1 groups for 2 parts"):
        split(members(("a", "x"), ("a", "x")), EIGHTY, 0)
    twice = [Member(session_id="1", group="a", stratum="x")] * 2
    with pytest.raises(DataError, match="'1' comes twice"):
        split(twice, EIGHTY, 0)


def test_a_written_split_reads_back_and_guards_its_bytes(tmp_path):
    parts = split([member_of(trip_session(number), "task_id", "reward") for number in range(20)], EIGHTY, 7)
    path = tmp_path / "split"
    manifest = write_split(path, parts, by="task_id", stratify="reward", seed=7, fractions=EIGHTY)
    assert manifest.counts["heldout"]["sessions"] == len(parts["heldout"])
    assert part_ids(path, "heldout") == {member.session_id for member in parts["heldout"]}
    with pytest.raises(ConfigError, match="exists"):
        write_split(path, parts, by="task_id", stratify="reward", seed=7, fractions=EIGHTY)
    with pytest.raises(ConfigError, match="no part 'test'; it has heldout, train"):
        part_ids(path, "test")
    other = tmp_path / "other"
    write_split(other, parts, by="task_id", stratify="reward", seed=7, fractions=EIGHTY)
    for name in ("train.jsonl", "heldout.jsonl", "manifest.json"):
        good = (path / name).read_bytes()
        assert (other / name).read_bytes() == good
        (path / name).write_bytes(
            good.replace(b"trip", b"trap", 1) if b"trip" in good else good.replace(b"7", b"8", 1)
        )
        with pytest.raises(IntegrityError, match=name.replace(".", r"\.")):
            read_split(path)
        (path / name).write_bytes(good)
    with pytest.raises(DataError, match="no such split"):
        read_split(tmp_path / "nowhere")
