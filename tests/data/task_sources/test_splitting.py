from __future__ import annotations

import random
from collections import Counter

import pytest

from firstchair.core.errors import ConfigError
from firstchair.data.splits import part_ids
from firstchair.data.task_sources.splitting import HOLDOUT_SHARE, OVERFIT_TASKS, SEED, split_tasks, write_task_split
from firstchair.data.task_sources.task_file import write_tasks
from firstchair.rollout.orchestration.task import OrchestrationTask


def task(number: int, domain: str, problem: str = "") -> OrchestrationTask:
    words = random.Random(f"{domain}{number}").sample(range(10_000), 12)
    text = problem or " ".join(f"w{word}" for word in words)
    return OrchestrationTask(task_id=f"{domain}-{number}", problem=text, domain=domain)


TASKS = [
    task(number, domain) for domain, count in (("math", 40), ("code", 20), ("qa", 20)) for number in range(count)
]


def ids(members) -> list[str]:
    return [member.session_id for member in members]


def test_the_holdout_is_15_percent_of_every_domain():
    parts = split_tasks(TASKS)
    assert Counter(member.stratum for member in parts["holdout"]) == {"math": 6, "code": 3, "qa": 3}
    assert sorted(ids(parts["train"]) + ids(parts["holdout"])) == sorted(one.task_id for one in TASKS)
    assert not set(ids(parts["train"])) & set(ids(parts["holdout"]))


def test_overfit_is_a_prefix_of_train_and_a_mix():
    parts = split_tasks(TASKS, overfit=30)
    assert ids(parts["overfit"]) == ids(parts["train"])[:30]
    assert len(parts["overfit"]) == 30
    assert set(Counter(member.stratum for member in parts["overfit"])) == {"math", "code", "qa"}


def test_a_split_depends_on_the_seed_and_not_on_the_order():
    shuffled = random.Random(1).sample(TASKS, len(TASKS))
    assert split_tasks(shuffled) == split_tasks(TASKS, seed=42)
    assert split_tasks(TASKS, seed=43) != split_tasks(TASKS)


def test_problems_that_resemble_each_other_stay_together():
    base = " ".join(f"word{number}" for number in range(30))
    alike = [task(number, "qa", f"{base} {number}") for number in range(100, 120)]
    for seed in range(2):
        parts = split_tasks([*TASKS, *alike], seed=seed)
        held = {one for one in ids(parts["holdout"]) if one in {one.task_id for one in alike}}
        assert len(held) in (0, len(alike))
    apart = split_tasks([*TASKS, *alike], threshold=1.0)
    assert 0 < len(set(ids(apart["holdout"])) & {one.task_id for one in alike}) < len(alike)


def test_the_shares_of_the_reference_are_what_one_gets_unasked():
    assert (SEED, HOLDOUT_SHARE, OVERFIT_TASKS) == (42, 0.15, 100)


def test_a_split_on_disk_is_checked_and_read_by_part(tmp_path):
    write_tasks(tmp_path / "tasks.jsonl", TASKS)
    options = {"seed": 42, "holdout": 0.15, "overfit": 30, "threshold": 0.6}
    manifest = write_task_split(tmp_path / "tasks.jsonl", tmp_path / "split", **options)
    assert {part: counts["sessions"] for part, counts in manifest.counts.items()} == {
        "train": 68,
        "holdout": 12,
        "overfit": 30,
    }
    assert part_ids(tmp_path / "split", "overfit") < part_ids(tmp_path / "split", "train")
    with pytest.raises(ConfigError, match="exists"):
        write_task_split(tmp_path / "tasks.jsonl", tmp_path / "split", **options)
    with pytest.raises(ConfigError, match=r"--holdout: found 1\.5"):
        write_task_split(tmp_path / "tasks.jsonl", tmp_path / "other", **{**options, "holdout": 1.5})
