"""The ten domains: written again they are the same bytes, every task passes every filter, none is like another."""

import importlib
import sys
from collections import Counter
from pathlib import Path

import pytest

from firstchair.core.errors import ConfigError
from firstchair.rollout.synthetic.domain import domain_text
from firstchair.rollout.synthetic.shipped import SHIPPED, load_domains, shipped_domain
from firstchair.rollout.synthetic.stages import ROWS, TOOLS

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "synthetic_domains"
FILES = ROOT / "src" / "firstchair" / "rollout" / "synthetic" / "domains"


@pytest.fixture(scope="module")
def generate():
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("generate")
    finally:
        sys.path.remove(str(FOLDER))


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_domain_is_what_its_author_writes_and_the_filters_keep(generate, name):
    """Kept means: the golden policy completes it, and none of the degenerate ones does."""
    module = next(module for module in generate.MODULES if module.BLUEPRINT.name == name)
    domain, verdicts = generate.made(module.BLUEPRINT)
    assert [verdict for verdict in verdicts if not verdict.kept] == []
    assert domain_text(domain) == (FILES / f"{name}.json").read_text(encoding="utf-8")
    depths = Counter(task.depth for task in domain.tasks)
    assert len(domain.tasks) >= 20
    assert min(depths[depth] for depth in ("read", "write", "multi", "refusal")) >= 3
    assert all(ROWS[0] <= len(rows) <= ROWS[1] for rows in domain.rows.values())
    assert TOOLS[0] <= len(domain.tools) <= TOOLS[1]


def test_domains_are_loaded_by_name_and_by_file():
    assert sorted(path.stem for path in FILES.glob("*.json")) == list(SHIPPED)
    assert [domain.name for domain in load_domains(["hotel", str(FILES / "fleet.json")])] == ["hotel", "fleet"]
    assert len(load_domains()) == 10
    with pytest.raises(ConfigError, match="domain 'zoo': expected one of airline"):
        load_domains(["zoo"])
    with pytest.raises(ConfigError, match="a domain named hotel is there already"):
        load_domains(["hotel", str(FILES / "hotel.json")])
    assert shipped_domain("hotel").title == "the Hotel Meridian"
