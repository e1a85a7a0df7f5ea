"""The benchmarks that can be run: whose data, what they need, which parts they have."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

from firstchair.core.errors import ConfigError

HelperRole = Literal["grader", "user"]
"""``grader``: a model that says whether an answer is right. ``user``: a model that plays the customer."""


class Benchmark(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark."""

    name: str
    title: str
    dataset: str
    """Where its records come from: a data set of the Hugging Face hub, or a repository."""
    source: Literal["hub", "git", "package"]
    """``package``: the records come with inspect_evals, nothing is downloaded."""
    revision: str = ""
    """The commit of the data set that is played; empty where inspect_evals names one, or has the records."""
    terms: str
    """Under what the data may be had."""
    gated: bool = False
    """The hub hands it out only to accounts that accepted its terms; ``HF_TOKEN`` names the account."""
    helper: HelperRole | None = None
    sandbox: bool = False
    """The model gets a shell and Python, so a sandbox must be there."""
    subsets: tuple[str, ...] = ("all",)
    """The first is what runs unless another is asked for."""


_ALL = (
    Benchmark(
        name="gaia",
        title="GAIA: questions for assistants with tools (validation split, 165)",
        dataset="gaia-benchmark/GAIA",
        source="hub",
        terms="gated; not to be republished",
        gated=True,
        sandbox=True,
        subsets=("2023_all", "2023_level1", "2023_level2", "2023_level3"),
    ),
    Benchmark(
        name="mmlu_pro",
        title="MMLU-Pro: ten options, 14 subjects (12,032)",
        dataset="TIGER-Lab/MMLU-Pro",
        source="hub",
        terms="MIT",
    ),
    Benchmark(
        name="supergpqa",
        title="SuperGPQA: graduate questions of 285 disciplines (26,529)",
        dataset="m-a-p/SuperGPQA",
        source="hub",
        revision="4430d4458112c7d4497fdcf94d7cc223313d6acf",
        terms="ODC-BY 1.0",
    ),
    Benchmark(
        name="hle",
        title="Humanity's Last Exam (2,500)",
        dataset="cais/hle",
        source="hub",
        terms="MIT, gated; not to be republished",
        gated=True,
        helper="grader",
        subsets=("all", "text"),
    ),
    Benchmark(
        name="frames",
        title="FRAMES: questions over several articles (824), asked without the articles",
        dataset="google/frames-benchmark",
        source="hub",
        revision="58d9fb6330f3ab1316d1eca12e5e8ef23dcc22ef",
        terms="Apache-2.0",
        helper="grader",
    ),
    Benchmark(
        name="tau2",
        title="τ²-bench: customer service with tools and a simulated customer",
        dataset="inspect_evals/tau2",
        source="package",
        terms="MIT",
        helper="user",
        subsets=("airline", "retail", "telecom", "banking"),
    ),
    Benchmark(
        name="bfcl",
        title="BFCL: function calls, versions 1 to 3",
        dataset="github.com/ShishirPatil/gorilla",
        source="git",
        terms="Apache-2.0",
        subsets=("all", "single_turn", "multi_turn"),
    ),
)

BENCHMARKS: Mapping[str, Benchmark] = MappingProxyType({one.name: one for one in _ALL})
"""Name → benchmark."""


def benchmark(name: str) -> Benchmark:
    """The benchmark of that name. Raises ``ConfigError`` naming those that exist."""
    if name not in BENCHMARKS:
        raise ConfigError(f"found the benchmark {name!r}; expected one of {', '.join(BENCHMARKS)}")
    return BENCHMARKS[name]


def subset_of(bench: Benchmark, subset: str) -> str:
    """``subset``, or the benchmark's first one for an empty text. Raises ``ConfigError`` for one it has not."""
    chosen = subset or bench.subsets[0]
    if chosen not in bench.subsets:
        raise ConfigError(f"--subset: found {subset!r}; {bench.name} has {', '.join(bench.subsets)}")
    return chosen
