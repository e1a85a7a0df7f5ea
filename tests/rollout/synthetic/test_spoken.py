"""What counts as said: numbers and dates in any usual spelling, words as whole words."""

import pytest

from firstchair.rollout.synthetic.domain import Fact
from firstchair.rollout.synthetic.spoken import asks, says


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("That is $1,250.00 in all.", "1250"),
        ("1250", "1,250"),
        ("It has -5 degrees.", "-5"),
        ('[{"euros": 50}]', "50"),
        ("a 5-night stay", "5"),
        ("Seats 12, 13.", "13"),
        ("On March 4th it opens.", "2026-03-04"),
        ("on the 4 of march", "2026-03-04"),
        ("due 2026-03-04.", "2026-03-04"),
        ("from Mar 22nd on", "2026-03-22"),
        ("I  can’t do that", "can't"),
        ("THE GLASS ORCHARD is here", "The Glass Orchard"),
        ("room A7.", "A7"),
        ("at 16:00 sharp", "16:00"),
    ],
)
def test_it_is_said(text, value):
    assert says(text, value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("In 2012 there were none.", "12"),
        ("2026-12-05", "12"),
        ("version 1.12", "12"),
        ("12.5 kg", "12"),
        ("B12", "12"),
        ("1,2503", "1250"),
        ("March 14", "2026-03-04"),
        ("On March 41", "2026-03-04"),
        ("the classroom", "class"),
        ("", "x"),
        ("unable", "able"),
    ],
)
def test_it_is_not_said(text, value):
    assert not says(text, value)


def test_only_a_question_with_the_topic_asks():
    fact = Fact(topics=("booking number", "name"), says="BK 7")
    assert asks("What is your NAME, please?", fact)
    assert not asks("Your name is noted.", fact)
    assert not asks("What is your nickname?", fact)
