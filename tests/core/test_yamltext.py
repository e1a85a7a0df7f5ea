import pytest

from firstchair.core.config import Strict, load_recipe
from firstchair.core.errors import ConfigError
from firstchair.core.yamltext import MAX_DEPTH, read_yaml


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: 2\na: 3\n", r"c\.yaml:3: key 'a' stands twice, first on line 1; keep one"),
        ("a:\n  - {b: 1, b: 1}\n", r"c\.yaml:2: key 'b' stands twice, first on line 2"),
        ("a: 1\nb: 2024-02-30\n", r"c\.yaml:2: '2024-02-30' cannot be read: day is out of range"),
        ("a: " + "9" * 5000, r"c\.yaml:1: '9{40}' cannot be read: .*5000 digits"),
        ("a: !!timestamp soon", r"c\.yaml:1: 'soon' cannot be read"),
        ("a: !!int ''", r"c\.yaml:1: '' cannot be read"),
        ("a: &a\n  - *a\n", r"c\.yaml:2: \*a stands inside what it names"),
        ("a: &a {b: {c: *a}}", r"c\.yaml:1: \*a stands inside"),
        ("[" * 5000, r"c\.yaml:1: nested more than 100 deep"),
        ("a: [\n", r"c\.yaml:2: not YAML: while parsing a flow node"),
        ("a: \0", r"c\.yaml: not YAML: unacceptable character"),
        ("a: !!python/object:x.y {}", r"c\.yaml:1: not YAML: could not determine a constructor"),
    ],
)
def test_what_would_be_taken_silently_or_crash_is_refused_with_its_line(text, says):
    with pytest.raises(ConfigError, match=says):
        read_yaml(text, "c.yaml")


def test_anchors_merges_and_equal_keys_elsewhere_are_fine():
    text = "base: &b {x: 1, y: 2}\nmore: {<<: *b, y: 3}\nagain: [*b, *b]\n1: a\n'1': b\n"
    found = read_yaml(text, "c.yaml")
    assert found["more"] == {"x": 1, "y": 3}
    assert found["again"] == [{"x": 1, "y": 2}] * 2
    assert (found[1], found["1"]) == ("a", "b")
    assert read_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH, "c.yaml") != []


class Recipe(Strict):
    seed: int = 0


def test_a_recipe_and_an_override_are_read_by_the_same_rules(tmp_path):
    (tmp_path / "r.yaml").write_text("seed: 1\nseed: 2\n")
    with pytest.raises(ConfigError, match=r"r\.yaml:2: key 'seed' stands twice"):
        load_recipe(Recipe, tmp_path / "r.yaml")
    with pytest.raises(ConfigError, match=r"Is a directory; expected a YAML file"):
        load_recipe(Recipe, tmp_path)
    with pytest.raises(ConfigError, match=r"--set seed=2024-02-30:1: '2024-02-30' cannot be read"):
        load_recipe(Recipe, None, ["seed=2024-02-30"])
