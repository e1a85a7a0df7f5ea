"""``firstchair orchestrate``: problems solved by a model that calls other models and tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstchair.cli.session_options import AsJson, Force
from firstchair.core.errors import ConfigError, RunFailed
from firstchair.core.seeds import MAX_SEED

if TYPE_CHECKING:
    from firstchair.data.orchestration.rejection import Sampled, Shard
    from firstchair.rollout.orchestration.policy_spec import LocalPolicy, ServerPolicy
    from firstchair.rollout.orchestration.run import Tally
    from firstchair.rollout.orchestration.setup import OrchestrationSetup
    from firstchair.rollout.orchestration.task import OrchestrationTask
    from firstchair.rollout.orchestration.trajectory import Trajectory
    from firstchair.rollout.rollouts import RolloutPlan

app = typer.Typer(no_args_is_help=True, help="Problems solved by a model that calls other models and tools.")


class Dialect(StrEnum):
    """What the policy's server speaks."""

    openai = "openai"
    anthropic = "anthropic"


class Calling(StrEnum):
    """How the policy calls tools."""

    native = "native"
    prompt = "prompt"


@app.callback()
def _group() -> None:
    """Problems solved by a model that calls other models and tools."""


@app.command()
def run(
    tasks: Annotated[Path, typer.Argument(help="File of tasks, JSON Lines or Parquet; see `firstchair tasks`.")],
    out: Annotated[
        Path, typer.Option(help="JSONL file of groups, a line a task; the same command again goes on with the rest.")
    ],
    setup: Annotated[
        Path | None, typer.Option(help="YAML file of experts, tools, offer, limits and grading.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Override a field of that file.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="Directory of the policy, loaded here.")] = None,
    adapter: Annotated[Path | None, typer.Option(help="PEFT adapter on it (--model).")] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16 (--model).")] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 (--model).")] = "cpu",
    base_url: Annotated[str | None, typer.Option(help="Server of the policy; OpenAI's with /v1.")] = None,
    served_model: Annotated[str, typer.Option(help="Its name on that server (--base-url).")] = "",
    dialect: Annotated[Dialect, typer.Option(help="What that server speaks (--base-url).")] = Dialect.openai,
    api_key_env: Annotated[str, typer.Option(help="Environment variable of its key (--base-url).")] = "",
    calling: Annotated[
        Calling,
        typer.Option(help="prompt: tools and calls as text, for a model trained on that (--base-url)."),
    ] = Calling.native,
    samples: Annotated[int, typer.Option(min=1, help="Rollouts of each task.")] = 8,
    shard: Annotated[str, typer.Option(metavar="K/N", help="Every N-th task, from the K-th on.")] = "1/1",
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Of offers and sampling.")] = 0,
    temperature: Annotated[float, typer.Option(min=0, max=100, help="Of the policy; 0 is greedy.")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest action.")] = 2048,
    max_steps: Annotated[int, typer.Option(min=1, help="Steps until a rollout is cut.")] = 8,
    concurrency: Annotated[int, typer.Option(min=1, help="Rollouts at once.")] = 64,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Play every task several times, grade it, and keep every trajectory. Exit code 1 when a task only broke."""
    import os

    from firstchair.cli.orchestrate_view import print_run
    from firstchair.cli.tables import counted
    from firstchair.core.config import load_recipe
    from firstchair.data.orchestration.rejection import Shard
    from firstchair.rollout.orchestration.policy_spec import LocalPolicy, ServerPolicy
    from firstchair.rollout.orchestration.setup import OrchestrationSetup
    from firstchair.rollout.rollouts import RolloutPlan

    if (model is None) == (base_url is None):
        raise ConfigError("give exactly one of --model DIR and --base-url URL")
    if model is not None and calling is Calling.prompt:
        raise ConfigError("--calling prompt is for --base-url; the template of --model DIR writes the tools itself")
    if base_url is not None and not served_model:
        raise ConfigError("--base-url needs --served-model NAME")
    policy: ServerPolicy | LocalPolicy
    if model is not None:
        policy = LocalPolicy(
            type="local",
            model=model,
            adapter=adapter,
            dtype=dtype,
            device=device,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
        )
    else:
        assert base_url is not None
        policy = ServerPolicy(
            type="server",
            base_url=base_url,
            model=served_model,
            dialect=dialect.value,
            api_key_env=api_key_env,
            calling=calling.value,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
        )
    plan = RolloutPlan(samples=samples, seed=seed, concurrency=concurrency, max_steps=max_steps)
    loaded = load_recipe(OrchestrationSetup, setup, overrides or ())
    job = _Job(tasks, out, setup, loaded, Shard.parse(shard), plan, force)
    sampled, tally = asyncio.run(_play(job, policy, os.environ))
    print_run(out, sampled, tally, as_json=as_json)
    if sampled.broken:
        raise RunFailed(f"every trajectory of {counted(sampled.broken, 'task')} broke; run the same command again")


@dataclass(frozen=True)
class _Job:
    """What is played, from the command line."""

    tasks: Path
    out: Path
    setup_file: Path | None
    setup: OrchestrationSetup
    shard: Shard
    plan: RolloutPlan
    force: bool


async def _play(job: _Job, wanted: ServerPolicy | LocalPolicy, environ: Mapping[str, str]) -> tuple[Sampled, Tally]:
    from contextlib import AsyncExitStack, aclosing

    from firstchair.core.config import fields_of
    from firstchair.core.progress import progress
    from firstchair.data.orchestration.made_by import made_by
    from firstchair.data.orchestration.rejection import sample_tasks
    from firstchair.data.task_sources.task_file import read_tasks
    from firstchair.gateway.telemetry import tracer_provider
    from firstchair.rollout.engine_policy import EnginePolicy
    from firstchair.rollout.orchestration.policy_spec import open_policy
    from firstchair.rollout.orchestration.run import Tally, run_orchestrations
    from firstchair.rollout.orchestration.setup import open_setup

    if job.out.exists() and job.out.samefile(job.tasks):
        raise ConfigError(f"--out {job.out} is the file of tasks; choose another path")
    count = len(range(job.shard.number - 1, sum(1 for _ in read_tasks(job.tasks)), job.shard.of))
    provider, tally = tracer_provider(environ), Tally()
    tracer = None if provider is None else provider.get_tracer("firstchair.orchestration")
    try:
        async with AsyncExitStack() as stack:
            with fields_of(job.setup_file):
                opened = await stack.enter_async_context(open_setup(job.setup, environ))
            policy = await stack.enter_async_context(
                open_policy(wanted, concurrency=job.plan.concurrency, key_field="--api-key-env")
            )
            weights = policy.engine.info().revision if isinstance(policy, EnginePolicy) else ""

            async def play(tasks: Iterable[OrchestrationTask]) -> AsyncGenerator[Trajectory, None]:
                played = run_orchestrations(
                    opened.environment, tasks, policy, job.plan, prices=opened.parts.prices, tracer=tracer
                )
                async with aclosing(played):
                    async for found in played:
                        tally.add(found)
                        yield found

            with progress("orchestrating", count, unit="tasks") as bar:
                sampled = await sample_tasks(
                    read_tasks(job.tasks),
                    play,
                    job.out,
                    samples=job.plan.samples,
                    shard=job.shard,
                    progress=bar,
                    made_by=made_by(wanted, weights, opened.parts, job.plan),
                    force=job.force,
                )
    finally:
        if provider is not None:
            provider.shutdown()
    return sampled, tally
