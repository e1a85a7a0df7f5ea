"""One run: K seeds over the same samples, and what it leaves.

    OUT/rows.jsonl       a line for each sample and seed
    OUT/sessions.jsonl   the same with their conversations: `firstchair trajectories view OUT/sessions.jsonl`
    OUT/summary.json     means with intervals, cost, latency, what was left out, and what was run
    OUT/inspect/seed-K/  Inspect's log of a seed: the whole trace of every sample (`inspect view`)
    OUT/run.json         what the rows depend on (``setup``)

The first two are written anew after every seed. A run that was stopped goes on from Inspect's logs: a seed that is
whole is not asked again, and of the one under way no sample that its log holds.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from rich.text import Text

from firstchair.catalog.prices import PriceTable
from firstchair.core.atomic import write_text
from firstchair.core.errors import ConfigError, DataError, FirstchairError, RunFailed, UpstreamError
from firstchair.core.extras import require
from firstchair.core.hashing import sha256_file
from firstchair.core.jsonl import write_jsonl
from firstchair.core.jsontext import dumps
from firstchair.engines.http_engine import key_from
from firstchair.evals.benchmarks.catalogue import Benchmark, subset_of
from firstchair.evals.benchmarks.records import read_records
from firstchair.evals.benchmarks.rows import BenchRow
from firstchair.evals.benchmarks.samples import row_of, session_of
from firstchair.evals.benchmarks.setup import Setup, begin, refuse_another, refuse_nothing_to_resume
from firstchair.evals.benchmarks.summary import Summary, summarize
from firstchair.traces.session import Session

GO_ON = "go on with it by --resume"

TRIES = 6
"""Of each call, of the endpoint and of the helper: after 429, 5xx and timeouts, with exponential waits and jitter."""


@dataclass(frozen=True)
class Endpoint:
    """A model at a server."""

    model: str
    base_url: str = ""
    """Of an OpenAI-compatible server, with ``/v1``; empty: ``model`` is a name of Inspect's, ``anthropic/…``."""
    key_env: str = ""


@dataclass(frozen=True)
class BenchOptions:
    """How to run a benchmark."""

    endpoint: Endpoint
    helper: Endpoint | None = None
    """The grader or the simulated user, of a benchmark that has one."""
    subset: str = ""
    n: int | None = None
    seeds: int = 1
    """Generation seeds 0 … K−1. The samples are the same under each."""
    draw_seed: int = 0
    records: Path | None = None
    sandbox: str = "docker"
    temperature: float | None = None
    """``None``: the endpoint's own."""
    max_tokens: int | None = None
    timeout_s: int = 600
    """Of one try of one call."""
    concurrency: int = 8
    prices: PriceTable = field(default_factory=PriceTable.load)


class Run(Setup, frozen=True, kw_only=True):
    """``summary.json``: what was run, and the numbers."""

    title: str
    seeds: tuple[int, ...]
    prices: str
    summary: Summary


def run_benchmark(
    bench: Benchmark,
    options: BenchOptions,
    out: Path,
    *,
    resume: bool = False,
    done: Callable[[int, list[BenchRow]], None] = lambda *_: None,
) -> Run:
    """Run it, or with ``resume`` go on with what was stopped or ask for more seeds; ``done`` hears each seed with its
    rows.

    Raises ``ConfigError`` for what is missing or cannot be, ``DataError`` for bad records, ``UpstreamError`` for a
    data set that cannot be had, ``RunFailed`` when Inspect itself fails or was interrupted.
    """
    subset = subset_of(bench, options.subset)
    _refuse(bench, options, out, resume=resume)
    require("inspect")
    records = None if options.records is None else read_records(bench.name, options.records)
    setup = _setup(bench, options, subset)
    if resume:
        refuse_another(out, setup)
    task = _load(bench, options, subset, records)
    if not resume:
        begin(out, setup)
    rows: list[BenchRow] = []
    sessions: list[Session] = []
    for seed in range(options.seeds):
        new: list[BenchRow] = []
        for sample in _samples(_eval(task, options, bench, seed, out / "inspect" / f"seed-{seed}")):
            new.append(row_of(sample, seed, options.prices, options.endpoint.model))
            sessions.append(session_of(sample, new[-1], benchmark=bench.name))
        rows += new
        write_jsonl(out / "rows.jsonl", (msgspec.to_builtins(row) for row in rows), force=True)
        write_jsonl(out / "sessions.jsonl", (msgspec.to_builtins(one) for one in sessions), force=True)
        done(seed, new)
    run = Run(
        **msgspec.structs.asdict(setup),
        title=bench.title,
        seeds=tuple(range(options.seeds)),
        prices=options.prices.version,
        summary=summarize(rows, range(options.seeds)),
    )
    write_text(out / "summary.json", dumps(msgspec.to_builtins(run)) + "\n", force=True)
    return run


def _refuse(bench: Benchmark, options: BenchOptions, out: Path, *, resume: bool) -> None:
    """Everything that can be told before anything is loaded."""
    if resume:
        refuse_nothing_to_resume(out)
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            f"--out: {out} exists; a run is never overwritten, choose another directory, or go on with it by --resume"
        )
    if bench.helper is not None and options.helper is None:
        does = "grades the answers" if bench.helper == "grader" else "plays the customer"
        raise ConfigError(f"--helper: {bench.name} needs a model that {does}; name one")
    if bench.sandbox and options.sandbox == "docker" and (why := _no_docker()):
        raise ConfigError(
            f"--sandbox: {bench.name} gives the model a shell in a container, and {why}; see to that, or choose "
            "`process`, our own sandbox, which has no network and keeps no programs between calls"
        )
    for name, endpoint in (("--base-url", options.endpoint), ("--helper-base-url", options.helper)):
        parts = urlsplit(endpoint.base_url if endpoint is not None else "")
        if parts.username is not None or parts.query:
            raise ConfigError(f"{name}: found a user or a query in it; leave them out and name the key's variable")


def _setup(bench: Benchmark, options: BenchOptions, subset: str) -> Setup:
    helper = options.helper if bench.helper is not None else None
    return Setup(
        benchmark=bench.name,
        dataset=bench.dataset,
        revision=bench.revision if options.records is None else "",
        subset=subset,
        records="" if options.records is None else str(options.records),
        records_sha256="" if options.records is None else sha256_file(options.records),
        model=options.endpoint.model,
        base_url=options.endpoint.base_url,
        helper="" if helper is None else helper.model,
        helper_base_url="" if helper is None else helper.base_url,
        n=options.n,
        draw_seed=options.draw_seed,
        temperature=options.temperature,
        max_tokens=options.max_tokens,
        sandbox=options.sandbox if bench.sandbox else "",
        versions={name: version(name) for name in ("inspect_ai", "inspect_evals")},
    )


def _no_docker() -> str:
    """Why no container can be started; empty when one can."""
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, timeout=30, check=False)
    except FileNotFoundError:
        return "docker is not installed"
    except subprocess.TimeoutExpired:
        return "docker does not answer"
    return "" if done.returncode == 0 else "docker's daemon does not run"


def _load(bench: Benchmark, options: BenchOptions, subset: str, records: Sequence[Mapping[str, Any]] | None) -> Any:
    from firstchair.evals.benchmarks.tasks import BUILD, Wanted, drawn_task

    path = options.records
    if records is None:
        _reach_hub(bench)
    wanted = Wanted(subset, options.sandbox, records, None if path is None else path.parent)
    try:
        return drawn_task(BUILD[bench.name], wanted, options.n, options.draw_seed)
    except FirstchairError:
        raise
    except Exception as error:  # a loader raises whatever its many libraries do
        why = _words(error)
        if path is not None:
            raise DataError(f"{why}; expected records in the shape of {bench.dataset}", path=str(path)) from error
        raise _not_to_be_had(bench, why) from error


def _reach_hub(bench: Benchmark) -> None:
    """Ask the hub for the data set before a loader does, which tries for minutes and says less."""
    if bench.source != "hub":
        return
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError

    if constants.HF_HUB_OFFLINE:
        return
    try:
        HfApi().auth_check(bench.dataset, repo_type="dataset")
    except GatedRepoError:
        raise ConfigError(
            f"{bench.name}: {bench.dataset} is handed out only to accounts that accepted its terms; accept them on "
            "its page and set HF_TOKEN to a token of that account, or give local records with --records FILE.jsonl"
        ) from None
    except (HfHubHTTPError, OSError) as error:
        raise _not_to_be_had(bench, _words(error)) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("httpx", "httpx2", "requests"):
            raise
        raise _not_to_be_had(bench, _words(error)) from error


def _words(error: Exception) -> str:
    """Its type, and the beginning of what it says; of a program what it wrote."""
    said = str(getattr(error, "stderr", "") or error).strip()
    return f"{type(error).__name__}: {' '.join(said.split())[:300]}"


def _not_to_be_had(bench: Benchmark, why: str) -> UpstreamError:
    cached = " (HF_HUB_OFFLINE=1 uses what was downloaded before)" if bench.source == "hub" else ""
    return UpstreamError(
        f"{bench.name}: the data set {bench.dataset} cannot be had ({why}); check the network{cached}, or give local "
        "records in its shape with --records FILE.jsonl",
        retryable=True,
    )


def _eval(task: Any, options: BenchOptions, bench: Benchmark, seed: int, logs: Path) -> Any:
    """Inspect's log of one seed, which is whole."""
    try:
        log = _inspect_eval(task, options, bench, seed, logs)
    except FirstchairError:
        raise
    except Exception as error:  # what a task cannot begin with, and what only Inspect's own command line shows
        if type(error).__name__ == "PrerequisiteError":  # a package or key of a vendor
            said = Text.from_markup(str(error)).plain.removeprefix("ERROR: ")
            raise ConfigError(f"{bench.name}: {' '.join(said.split())}") from None
        raise RunFailed(f"{bench.name}, seed {seed}: {_words(error)}; see {logs}; {GO_ON}") from error
    if log is None:
        raise RunFailed(f"{bench.name}, seed {seed}: interrupted; see {logs}; {GO_ON}")
    if log.status == "success":
        return log
    why = "interrupted" if log.status == "cancelled" or log.error is None else log.error.message
    raise RunFailed(f"{bench.name}, seed {seed}: {' '.join(str(why).split())[:500]}; see {log.location}; {GO_ON}")


def _inspect_eval(task: Any, options: BenchOptions, bench: Benchmark, seed: int, logs: Path) -> Any:
    """The log; ``None`` after Ctrl-C."""
    import rich
    from inspect_ai import eval_set
    from inspect_ai.model import GenerateConfig

    retried = {"max_retries": TRIES - 1, "attempt_timeout": options.timeout_s, "max_connections": options.concurrency}
    own = GenerateConfig(**retried, seed=seed, temperature=options.temperature, max_tokens=options.max_tokens)
    roles = {}
    if bench.helper is not None and options.helper is not None:
        roles[bench.helper] = _model(options.helper, GenerateConfig(**retried), "--helper-key-env")
    console = rich.get_console()
    quiet, console.quiet = console.quiet, True  # it says of every set that it is complete
    try:
        # A set of one, because a set goes on with what its directory holds.
        _, found = eval_set(
            task,
            log_dir=str(logs),
            retry_attempts=0,
            retry_immediate=False,
            model=_model(options.endpoint, own, "--api-key-env"),
            model_roles=roles,
            display="none",
            log_level="error",
            log_realtime=False,
            log_model_api=True,  # the endpoint's own word on its cost stands in its answers alone
            score_display=False,
            ctl_server=False,
            fail_on_error=False,
            max_samples=options.concurrency,
            metadata={"firstchair_seed": seed},
        )
    finally:
        console.quiet = quiet
    return found[0] if found else None


def _model(endpoint: Endpoint, config: Any, flag: str) -> Any:
    from inspect_ai.model import get_model

    if not endpoint.base_url:
        return get_model(endpoint.model, config=config)
    return get_model(
        f"openai-api/firstchair/{endpoint.model}",
        base_url=endpoint.base_url,
        api_key=key_from(endpoint.key_env, field=flag),
        config=config,
        max_retries=0,  # of the client inside, whose tries would multiply those of Inspect
    )


def _samples(log: Any) -> Iterator[Any]:
    """The samples of a log, one at a time in memory."""
    from inspect_ai.log import read_eval_log_samples

    yield from read_eval_log_samples(log.location, all_samples_required=False, resolve_attachments=True)
