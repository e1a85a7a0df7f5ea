import random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstchair.chat.messages import assistant_message, text_message, tool_result
from firstchair.core.errors import ConfigError
from firstchair.data.near_duplicates import (
    MAX_MISS,
    NUM_PERM,
    bands_for,
    drop_near_duplicates,
    leaks,
    near_duplicates,
    texts_of,
    with_shared_text,
)
from firstchair.data.similarity import conversation_text, jaccard, shared_text, shingles, text_shingles, words_of
from firstchair.testing.sessions import trip_session

WORDS = [f"word{number}" for number in range(400)]


def document(seed: int, length: int = 200) -> list[str]:
    rng = random.Random(seed)
    return [rng.choice(WORDS) for _ in range(length)]


def mutated(words: list[str], share: float, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [rng.choice(WORDS) if rng.random() < share else word for word in words]


def sets_of(documents: dict[str, list[str]]):
    return [(name, shingles(" ".join(words))) for name, words in documents.items()]


def test_similarity_is_that_of_the_sets_of_word_runs():
    left, right = "the cat sat on the mat", "the cat sat on a mat"
    runs = [{tuple(text.split()[i : i + 3]) for i in range(4)} for text in (left, right)]
    exact = len(runs[0] & runs[1]) / len(runs[0] | runs[1])
    assert jaccard(shingles(left), shingles(right)) == exact == 2 / 6
    assert jaccard(shingles("a b"), shingles("A, b!")) == 1.0
    assert jaccard(shingles(""), shingles("")) == 0.0
    assert jaccard(shingles("a b"), shingles("a b c")) == 0.0


@given(st.text(max_size=40), st.text(max_size=40))
def test_similarity_is_symmetric_and_one_for_equal_text(left, right):
    assert jaccard(shingles(left), shingles(right)) == jaccard(shingles(right), shingles(left))
    if words_of(left):
        assert jaccard(shingles(left), shingles(left)) == 1.0


def test_scripts_without_spaces_are_compared_too():
    assert words_of("大阪へ行く Zürich") == ["大", "阪", "へ", "行", "く", "zürich"]
    assert 0 < jaccard(shingles("大阪へ行きたい"), shingles("大阪へ行きます")) < 1


def test_hashes_are_equal_everywhere():
    # Stored sketches and reports of other machines must agree; a change here is a change of the format.
    assert shingles("one two three four").tolist() == sorted(shingles("one two three four").tolist())
    assert shingles("one two three").dtype == np.uint64
    assert shingles("one two three").tolist() == [3179139965090178617]


def test_boilerplate_does_not_make_sessions_alike():
    session = trip_session(1)
    text = conversation_text(session.messages)
    assert "You book trips" not in text
    assert "rate limit" not in text
    assert 'book {"trip_id"' in text
    assert "Search for" not in text
    call = session.messages[2].tool_calls[0]
    shared = [text_message("system", " ".join(document(0))), tool_result(call, " ".join(document(1)))]
    left, right = (
        msgspec.structs.replace(
            session, messages=(*shared, text_message("user", " ".join(document(n))), assistant_message("ok fine"))
        )
        for n in (2, 3)
    )
    assert jaccard(text_shingles(left), text_shingles(right)) < 0.1


def test_pairs_are_those_of_brute_force():
    documents = {f"d{number}": document(number) for number in range(30)}
    for number in range(30):
        documents[f"m{number}"] = mutated(documents[f"d{number}"], 0.01 * number, seed=number)
    sets = sets_of(documents)
    expected = {
        (left, right): jaccard(a, b)
        for place, (left, a) in enumerate(sets)
        for right, b in sets[place + 1 :]
        if jaccard(a, b) >= 0.6
    }
    assert 5 < len(expected) < 25
    assert {(pair.left, pair.right): pair.similarity for pair in near_duplicates(sets, 0.6)} == expected
    across = leaks(sets[:30], sets[30:], 0.6)
    assert {(pair.left, pair.right): pair.similarity for pair in across} == expected


def test_empty_conversations_are_not_duplicates_of_each_other():
    assert near_duplicates([("a", shingles("")), ("b", shingles("!?"))], 0.6) == []
    assert leaks([("a", shingles(""))], [("b", shingles(""))], 0.6) == []


def test_the_first_of_a_cluster_is_kept():
    twins = [msgspec.structs.replace(trip_session(1), session_id=name) for name in ("a", "b", "c")]
    kept, dropped = drop_near_duplicates([twins[0], trip_session(2), *twins[1:]], 0.6)
    assert [session.session_id for session in kept] == ["a", "trip-2"]
    assert [(pair.left, pair.right) for pair in dropped] == [("a", "b"), ("a", "c")]


def test_a_report_shows_the_text_that_both_hold():
    left = "Hello. Please book flight HAT-136 to Denver for two people, thanks."
    right = "Good day! Could you book flight HAT-136 to Denver for 2 persons?"
    assert shared_text(left, right) == "book flight HAT-136 to Denver for"
    assert shared_text("nothing in common here", right) == ""
    assert shared_text("hi there", "Hi, there!") == "hi there"
    assert shared_text(left, left, max_chars=5) == "Hello"
    twin = msgspec.structs.replace(trip_session(1), session_id="twin")
    texts = texts_of({"trip-1": trip_session(1), "twin": twin})
    (pair,) = with_shared_text(
        leaks([("trip-1", text_shingles(trip_session(1)))], [("twin", text_shingles(twin))]), texts, texts
    )
    assert pair.shared_text.startswith("Find me a trip to")


@pytest.mark.parametrize("threshold", [0.3, 0.9])
def test_other_thresholds_decide_exactly_too(threshold):
    base = document(1)
    sets = sets_of(
        {"base": base, **{f"m{n}": mutated(base, (0.004 if threshold > 0.5 else 0.02) * n, n) for n in range(1, 24)}}
    )
    found = {pair.right for pair in near_duplicates(sets, threshold) if pair.left == "base"}
    expected = {name for name, own in sets[1:] if jaccard(sets[0][1], own) >= threshold}
    assert found == expected
    assert 0 < len(expected) < 23


def test_bands_find_pairs_at_the_threshold_and_few_below():
    assert bands_for(0.6) == (48, 4)
    for threshold in (0.1, 0.3, 0.5, 0.6, 0.8, 0.95, 1.0):
        bands, rows = bands_for(threshold)
        assert bands * rows <= NUM_PERM
        assert (1 - threshold**rows) ** bands <= MAX_MISS
    with pytest.raises(ConfigError, match=r"found 0\.0; expected 0\.1 to 1"):
        bands_for(0.0)
