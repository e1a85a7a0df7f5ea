"""Each benchmark as an Inspect task: over the download, or over local records through the same code.

GAIA, MMLU-Pro, HLE, τ²-bench and BFCL are the tasks of ``inspect_evals``: prompts, tools and scorers are theirs. Of
these the data set's loader alone is left out where local records are given. FRAMES and SuperGPQA are not among them
and are in ``own_tasks``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, NamedTuple

from firstchair.core.errors import DataError


class Wanted(NamedTuple):
    """Which task."""

    subset: str
    sandbox: str
    """What runs the model's programs, where the benchmark has any: ``docker``, ``k8s``, ``process``, ``local``."""
    records: Sequence[Mapping[str, Any]] | None
    """Instead of the download."""
    folder: Path | None
    """Of the records' file; GAIA's attachments are looked for in it."""


Build = Callable[[Wanted], Any]
"""Makes the ``inspect_ai.Task`` with its whole data set, in an order that does not change from run to run."""


def draw(count: int, n: int | None, seed: int) -> list[int]:
    """Which of ``count`` samples run, in rising order: the first ``n`` of a shuffle by ``seed``, all for ``None``.

    A larger ``n`` under the same seed draws the same ones and more, so runs stay paired.
    """
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return sorted(order[:n])


def drawn_task(build: Build, wanted: Wanted, n: int | None, seed: int) -> Any:
    """The task over the samples that ``draw`` chooses."""
    from inspect_ai.dataset import MemoryDataset

    task = build(wanted)
    samples = list(task.dataset)
    for number, sample in enumerate(samples, start=1):
        sample.id = number if sample.id is None else sample.id
    chosen = [samples[index] for index in draw(len(samples), n, seed)]
    task.dataset = MemoryDataset(chosen, name=task.dataset.name, location=task.dataset.location)
    return task


def _gaia(wanted: Wanted) -> Any:
    from inspect_ai import Task
    from inspect_evals.gaia import dataset, gaia
    from inspect_evals.gaia.gaia import (
        DEFAULT_DOCKER_SANDBOX,
        DEFAULT_K8S_SANDBOX,
        DEFAULT_MESSAGE_LIMIT,
        default_solver,
    )
    from inspect_evals.gaia.gaia import DEFAULT_WEB_SEARCH_PROVIDERS as SEARCH
    from inspect_evals.gaia.scorer import gaia_scorer

    sandbox = {"docker": DEFAULT_DOCKER_SANDBOX, "k8s": DEFAULT_K8S_SANDBOX}.get(wanted.sandbox, wanted.sandbox)
    if wanted.records is None:
        task = gaia(subset=wanted.subset, sandbox=sandbox)
        return _in_work_dir(task) if wanted.sandbox == "process" else task
    with _attachments(wanted.folder) as folder:
        to_sample = dataset.make_record_to_sample_function(None, folder, "validation")
        samples = [to_sample(dict(record)) for record in wanted.records]
    for sample in samples:
        if not sample.files:
            sample.setup = None  # makes the folder of the attachments, at the root
    task = Task(
        dataset=samples,
        solver=default_solver(1, web_search_providers=SEARCH),
        scorer=gaia_scorer(),
        sandbox=sandbox,
        message_limit=DEFAULT_MESSAGE_LIMIT,
        name="gaia",
    )
    return _in_work_dir(task) if wanted.sandbox == "process" else task


def _in_work_dir(task: Any) -> Any:
    """GAIA for our own sandbox, whose root nobody writes to: attachments lie in the working directory."""
    from firstchair.evals.benchmarks import own_sandbox

    assert task.sandbox.type == own_sandbox.NAME
    for sample in task.dataset:
        sample.input = sample.input.replace(" /shared_files/", " shared_files/")
        sample.files = {name.removeprefix("/"): content for name, content in (sample.files or {}).items()}
        sample.setup = None
    return task


@contextmanager
def _attachments(folder: Path | None) -> Iterator[Path]:
    """Where ``2023/validation`` with the attachments is: beside the records, else an empty one for the moment."""
    if folder is not None and (folder / "2023" / "validation").is_dir():
        yield folder.resolve()
        return
    with TemporaryDirectory(prefix="firstchair-gaia-") as empty:
        (Path(empty) / "2023" / "validation").mkdir(parents=True)
        yield Path(empty)


def _mmlu_pro(wanted: Wanted) -> Any:
    from inspect_ai import Task
    from inspect_ai.scorer import choice
    from inspect_evals.mmlu_pro import mmlu_pro
    from inspect_evals.mmlu_pro.mmlu_pro import mmlu_pro_solver, record_to_sample

    if wanted.records is None:
        return mmlu_pro(shuffle=False)
    samples = [record_to_sample(dict(record)) for record in wanted.records]
    return Task(dataset=samples, solver=mmlu_pro_solver(fewshot=0), scorer=choice(), name="mmlu_pro")


def _hle(wanted: Wanted) -> Any:
    from inspect_ai import Task
    from inspect_ai.solver import generate
    from inspect_evals.hle.dataset import record_to_sample
    from inspect_evals.hle.hle import DEFAULT_TASK_ARGS, hle
    from inspect_evals.utils import scorers_from_spec

    # One judge: the package's own default asks two models of its choice and makes two scores of them.
    spec = {**DEFAULT_TASK_ARGS["scorer"], "graders": ["grader"], "metrics": []}
    text_only = wanted.subset == "text"
    if wanted.records is None:
        return hle(include_multi_modal=not text_only, only_hle_verified_gold=False, scorer=spec)
    samples = [record_to_sample(dict(one)) for one in wanted.records if not (text_only and one["image"])]
    return Task(dataset=samples, solver=generate(tool_calls="none"), scorer=scorers_from_spec(spec), name="hle")


def _tau2(wanted: Wanted) -> Any:
    from importlib import import_module

    from inspect_evals.tau2 import tau2

    task = getattr(tau2, f"tau2_{wanted.subset}")(shuffle=False)
    if wanted.records is not None:
        from inspect_ai.dataset import MemoryDataset

        module = import_module(f"inspect_evals.tau2.{wanted.subset}.dataset")
        to_sample = module.get_record_to_sample(f"{wanted.subset.capitalize()}Agent")
        task.dataset = MemoryDataset([to_sample(dict(record)) for record in wanted.records], name="tau2")
    return task


def _bfcl(wanted: Wanted) -> Any:
    from inspect_ai import Task
    from inspect_evals.bfcl.bfcl import (
        DEFAULT_CATEGORIES,
        bfcl,
        bfcl_scorer,
        bfcl_solver,
        single_turn_record_to_sample,
    )
    from inspect_evals.bfcl.data import BFCLRecord

    if wanted.records is None:
        multi = wanted.subset == "multi_turn"
        return bfcl(
            categories=[
                one for one in DEFAULT_CATEGORIES if wanted.subset == "all" or one.startswith("multi_turn") == multi
            ]
        )
    samples = []
    for record in wanted.records:
        if str(record["category_name"]).startswith("multi_turn"):
            raise DataError(
                f"{record['id']}: found the category {record['category_name']}; its tools are programs of the "
                "repository, so local records are of categories with one turn"
            )
        samples.append(single_turn_record_to_sample(BFCLRecord(**{"turns": 1, **record})))
    return Task(dataset=samples, solver=bfcl_solver(), scorer=bfcl_scorer(), name="bfcl")


def _supergpqa(wanted: Wanted) -> Any:
    from firstchair.evals.benchmarks.own_tasks import supergpqa

    return supergpqa(wanted.records)


def _frames(wanted: Wanted) -> Any:
    from firstchair.evals.benchmarks.own_tasks import frames

    return frames(wanted.records)


BUILD: Mapping[str, Build] = MappingProxyType(
    {
        "gaia": _gaia,
        "mmlu_pro": _mmlu_pro,
        "supergpqa": _supergpqa,
        "hle": _hle,
        "frames": _frames,
        "tau2": _tau2,
        "bfcl": _bfcl,
    }
)
"""Benchmark → what makes its task. Each may raise whatever the data set's loader raises."""
