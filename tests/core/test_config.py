from pathlib import Path

import pytest
from pydantic import Field, model_validator

from firstchair.core.config import Strict, load_recipe
from firstchair.core.errors import ConfigError


class Inner(Strict):
    rate: float = 0.1


class Recipe(Strict):
    name: str = "x"
    inner: Inner = Inner()
    tags: tuple[str, ...] = ()


def test_overrides_are_yaml_and_reach_into_sections(tmp_path: Path):
    path = tmp_path / "recipe.yaml"
    path.write_text("name: a\ninner: {rate: 0.5}\n")
    recipe = load_recipe(Recipe, path, ["inner.rate=1e-3", "tags=[p, q]"])
    assert (recipe.name, recipe.inner.rate, recipe.tags) == ("a", 1e-3, ("p", "q"))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("inner.rat=1", "did you mean rate"),
        ("nam=1", "did you mean name"),
        ("inner.rate=fast", "inner.rate.*found 'fast'"),
        ("name", "expected field.name=value"),
        ("name.first=1", "name is not a section|Input should be a valid string"),
    ],
)
def test_a_wrong_override_is_named(override, words):
    with pytest.raises(ConfigError, match=words):
        load_recipe(Recipe, None, [override])


class Team(Strict):
    members: tuple[Inner, ...] = Field(min_length=1)


def test_a_list_whose_members_are_wrong_is_not_said_to_be_short_as_well():
    with pytest.raises(ConfigError) as caught:
        load_recipe(Team, None, ["members=[{rat: 1}]"])
    assert str(caught.value).splitlines()[1:] == ["  members.0.rat: unknown field; did you mean rate?"]
    with pytest.raises(ConfigError, match=r"members: .*at least 1 item.*found \[\]"):
        load_recipe(Team, None, ["members=[]"])


class Range(Strict):
    low: int
    high: int

    @model_validator(mode="after")
    def _ordered(self) -> "Range":
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) must not be above high ({self.high}); lower the first")
        return self


def test_a_rule_about_a_section_is_told_in_its_own_words():
    with pytest.raises(ConfigError) as caught:
        load_recipe(Range, None, ["low=3", "high=2"])
    assert str(caught.value).splitlines()[1] == "  low (3) must not be above high (2); lower the first"


@pytest.mark.parametrize("text", ["a: [", "- 1\n"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"recipe\.yaml"):
        load_recipe(Recipe, path)


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such file"):
        load_recipe(Recipe, tmp_path / "none.yaml")
