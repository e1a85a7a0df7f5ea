from pathlib import Path

import pytest

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


@pytest.mark.parametrize("text", ["a: [", "- 1\n"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"recipe\.yaml"):
        load_recipe(Recipe, path)


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such recipe"):
        load_recipe(Recipe, tmp_path / "none.yaml")
