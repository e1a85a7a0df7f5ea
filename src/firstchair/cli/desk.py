"""``firstchair desk``: the embedded harness world from the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from firstchair.cli.session_options import AsJson, CallArguments, Force, Labels, Split, Wide, selection_of
from firstchair.core.errors import ConfigError, RunFailed
from firstchair.core.progress import progress
from firstchair.core.seeds import MAX_SEED

if TYPE_CHECKING:
    from firstchair.rollout.episodes import Episode
    from firstchair.rollout.policy import Policy
    from firstchair.traces.store import TraceStore

app = typer.Typer(no_args_is_help=True, help="The embedded harness world: tasks, recordings, HTTP teacher, episodes.")


class Dialect(StrEnum):
    """What a model's server speaks."""

    openai = "openai"
    anthropic = "anthropic"


Count = Annotated[int, typer.Option("--n", min=1, max=1_000_000, help="How many tasks.")]
Seed = Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of tasks, world and the teacher's mistakes.")]
MistakeRate = Annotated[
    float, typer.Option(min=0, max=1, help="Share of the teacher's actions that break the policy.")
]
Concurrency = Annotated[int, typer.Option(min=1, max=100_000, help="Episodes that live at once.")]


@app.command()
def tasks(n: Count = 10, seed: Seed = 0, wide: Wide = False, as_json: AsJson = False) -> None:
    """Print generated tasks."""
    import msgspec

    from firstchair.cli.desk_view import print_tasks
    from firstchair.rollout.desk.tasks import make_tasks

    made = make_tasks(n, seed)
    if as_json:
        for task in made:
            typer.echo(msgspec.json.encode(task).decode())
        return
    print_tasks(made, wide=wide)


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; there is no authentication.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8100,
    mistake_rate: MistakeRate = 0.0,
    seed: Seed = 0,
    model: Annotated[str, typer.Option(help="The model name it answers to.")] = "desk-teacher",
) -> None:
    """Serve the teacher as an OpenAI and Anthropic model until Ctrl-C."""
    from firstchair.rollout.desk.server import serve as serve_teacher

    def ready(url: str) -> None:
        typer.echo(f"{model} on {url}  (OpenAI clients: {url}/v1, Anthropic clients: {url})")

    serve_teacher(host, port, mistake_rate=mistake_rate, seed=seed, model=model, ready=ready)


@app.command()
def record(
    n: Count = 100,
    out: Annotated[Path | None, typer.Option(help="Directory for session files.")] = None,
    store: Annotated[str | None, typer.Option(help="Trace store: a path or a database URL.")] = None,
    seed: Seed = 0,
    mistake_rate: MistakeRate = 0.0,
    base_url: Annotated[
        str | None, typer.Option(help="Record this server (with /v1) instead of starting a teacher.")
    ] = None,
    concurrency: Concurrency = 20,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Record the teacher's sessions over HTTP, into files (--out) or a store (--store)."""
    from firstchair.cli.desk_view import print_recorded
    from firstchair.core.atomic import refuse_existing
    from firstchair.rollout.desk.environment import DeskEnvironment
    from firstchair.rollout.desk.tasks import make_tasks
    from firstchair.rollout.recording import record_sessions
    from firstchair.traces.store import TraceStore

    if (out is None) == (store is None):
        raise ConfigError("give exactly one of --out DIR and --store URL")
    if base_url is not None and mistake_rate:
        raise ConfigError("--mistake-rate is for the teacher started here; with --base-url set it on the server")
    if out is not None:
        refuse_existing(out, force=force)
    made = make_tasks(n, seed)
    # Opened before the work: a store that cannot be used must not cost a recording.
    opened = TraceStore.open(store) if store is not None else None
    with opened or nullcontext():
        with _teacher(base_url, mistake_rate, seed) as url:
            recording = record_sessions(url, made, DeskEnvironment, seed=seed, concurrency=concurrency)
            episodes = asyncio.run(_collect(recording, "recording", len(made)))
        good = [episode for episode in episodes if episode.error is None]
        kept = _keep(good, out, opened, force=force)
    summary = {
        "sessions": len(good),
        "new": kept.new,
        "completed": sum(bool(episode.completed) for episode in good),
        "calls": sum(len(episode.session.calls) for episode in good),
        "failed": len(episodes) - len(good),
    }
    if as_json:
        typer.echo(json.dumps({**summary, "where": kept.where}))
    else:
        print_recorded(summary, kept.where)
    _fail_on_errors(episodes)


@app.command()
def play(
    n: Count = 50,
    model: Annotated[Path | None, typer.Option(help="Directory of a model to load here.")] = None,
    adapter: Annotated[
        Path | None, typer.Option(help="PEFT adapter on it: the model/ folder of a LoRA run (--model).")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16 (--model).")] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 (--model).")] = "cpu",
    base_url: Annotated[str | None, typer.Option(help="Server of a model; OpenAI's with /v1.")] = None,
    served_model: Annotated[str, typer.Option(help="Its name on that server.")] = "desk-teacher",
    dialect: Annotated[Dialect, typer.Option(help="What that server speaks.")] = Dialect.openai,
    teacher: Annotated[bool, typer.Option("--teacher", help="Let the scripted teacher play.")] = False,
    arguments: CallArguments = None,
    seed: Seed = 1,
    mistake_rate: MistakeRate = 0.0,
    temperature: Annotated[float, typer.Option(min=0, max=100, help="0 is greedy.")] = 0.0,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Longest action; a longer one is cut.")
    ] = 256,
    max_steps: Annotated[int, typer.Option(min=1, max=1_000_000, help="Actions until an episode is given up.")] = 40,
    concurrency: Concurrency = 16,
    out: Annotated[Path | None, typer.Option(help="Directory for the sessions.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Let a model, a server's model or the teacher play tasks; print how many it completes."""
    from firstchair.cli.desk_view import print_completion
    from firstchair.core.atomic import refuse_existing
    from firstchair.rollout.desk.environment import DeskEnvironment
    from firstchair.rollout.desk.tasks import make_tasks
    from firstchair.rollout.episodes import run_episodes

    if [model is not None, base_url is not None, teacher].count(True) != 1:
        raise ConfigError("give exactly one of --model DIR, --base-url URL and --teacher")
    if model is None and arguments is not None:
        raise ConfigError("--arguments is for --model DIR; a server renders its own prompts")
    if model is None and adapter is not None:
        raise ConfigError("--adapter is for --model DIR; a server is asked for an adapter by --served-model")
    if out is not None:
        refuse_existing(out, force=force)
    made = make_tasks(n, seed)

    async def run() -> list[Episode]:
        local = None if model is None else _Local(model, adapter, dtype, device, arguments)
        player = _Player(local, base_url, served_model, dialect, temperature, max_new_tokens, mistake_rate, seed)
        async with _policy(player) as policy:
            running = run_episodes(
                DeskEnvironment, made, policy, seed=seed, concurrency=concurrency, max_steps=max_steps
            )
            return await _collect(running, "playing", len(made))

    episodes = asyncio.run(run())
    good = [episode for episode in episodes if episode.error is None]
    where = _keep(good, out, None, force=force).where if out is not None else ""
    print_completion(made, episodes, where, as_json=as_json)
    _fail_on_errors(episodes)


@app.command()
def show(
    seed: Seed = 0,
    number: Annotated[int, typer.Option(min=0, max=1_000_000, help="Which of the seed's tasks.")] = 0,
    mistake_rate: MistakeRate = 0.0,
    as_json: AsJson = False,
) -> None:
    """Play one task with the teacher and print the session."""
    import msgspec

    from firstchair.cli.desk_view import print_episode
    from firstchair.rollout.desk.environment import DeskEnvironment
    from firstchair.rollout.desk.tasks import make_tasks
    from firstchair.rollout.desk.teacher import Teacher
    from firstchair.rollout.episodes import run_episodes
    from firstchair.rollout.teacher_policy import TeacherPolicy

    task = make_tasks(number + 1, seed)[number]
    policy = TeacherPolicy(Teacher(mistake_rate=mistake_rate, seed=seed), name="desk-teacher")
    running = run_episodes(DeskEnvironment, [task], policy, seed=seed, source="scripted")
    (episode,) = asyncio.run(_collect(running, "playing", 1))
    if as_json:
        typer.echo(msgspec.json.encode(episode.session).decode())
    else:
        print_episode(episode, task.rows)
    _fail_on_errors([episode])


@app.command("catalog")
def catalog_command(
    out: Annotated[Path | None, typer.Option(help="File to write; standard output unless given.")] = None,
    force: Force = False,
) -> None:
    """Write the desk's verified catalog (tools, matchers, skills, routing policy) as YAML."""
    from firstchair.catalog.catalog import catalog_yaml
    from firstchair.core.atomic import write_text
    from firstchair.rollout.desk.definitions import desk_catalog

    text = catalog_yaml(desk_catalog())
    if out is None:
        typer.echo(text, nl=False)
        return
    write_text(out, text, force=force)
    typer.echo(f"{out}: {len(desk_catalog().tools)} tools, verified")


@app.command("review")
def review_command(
    source: Annotated[str, typer.Argument(help="Trace store (path or URL), export directory, or golden draft.")],
    out: Annotated[Path, typer.Option(help="Corrections file (JSONL) to write.")],
    confirm: Annotated[
        bool, typer.Option("--confirm", help="List the right decisions too, as confirmed, so that all are verified.")
    ] = False,
    labels: Labels = None,
    split: Split = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Review recorded desk sessions against the routing policy and write the corrections they need."""
    from firstchair.cli.desk_view import print_review
    from firstchair.core.jsonl import write_jsonl
    from firstchair.data.sources import open_source
    from firstchair.rollout.desk.review import ReviewCounts, reviewed

    counts = ReviewCounts()
    selection = selection_of(labels, split=split)
    with open_source(source, selection) as opened:
        write_jsonl(out, reviewed(opened.sessions(), opened.tools, counts, confirm=confirm), force=force)
    print_review(out, counts, as_json=as_json)


# What the commands share


async def _collect(episodes: AsyncGenerator[Episode, None], title: str, total: int) -> list[Episode]:
    out: list[Episode] = []
    with progress(title, total, unit="sessions") as bar:
        async with aclosing(episodes):
            async for episode in episodes:
                out.append(episode)
                bar.advance()
    # The order of tasks, not of finishing: equal runs write equal files.
    return sorted(out, key=lambda episode: episode.number)


@contextmanager
def _teacher(base_url: str | None, mistake_rate: float, seed: int) -> Iterator[str]:
    """The URL to record: the one given, or that of a teacher started for the length of the block."""
    if base_url is not None:
        yield base_url
        return
    from firstchair.rollout.desk.server import running_teacher

    with running_teacher(mistake_rate=mistake_rate, seed=seed) as server:
        yield server.openai_url


@dataclass(frozen=True)
class _Local:
    """A model to load in this process."""

    model: Path
    adapter: Path | None
    dtype: str
    device: str
    arguments: Literal["verbatim", "respaced"] | None


@dataclass(frozen=True)
class _Player:
    """Who plays, from the command line."""

    local: _Local | None
    base_url: str | None
    served_model: str
    dialect: Dialect
    temperature: float
    max_new_tokens: int
    mistake_rate: float
    seed: int


@asynccontextmanager
async def _policy(player: _Player) -> AsyncIterator[Policy]:
    from firstchair.engines.base import Sampling

    sampling = Sampling(
        max_new_tokens=player.max_new_tokens,
        temperature=player.temperature,
        seed=player.seed if player.temperature else None,
    )
    if player.local is not None:
        from firstchair.chat.trained import prompts_from, trained_renderer
        from firstchair.engines.transformers_engine import TransformersEngine
        from firstchair.rollout.engine_policy import EnginePolicy

        local = player.local
        renderer = trained_renderer(prompts_from(local.model, local.adapter), arguments=local.arguments)
        engine = TransformersEngine(local.model, renderer, local.dtype, adapter=local.adapter, device=local.device)
        try:
            yield EnginePolicy(engine, renderer, sampling)
        finally:
            await engine.close()
    elif player.base_url is not None:
        from firstchair.rollout.http_policy import HttpPolicy

        # Through extra_body, since Anthropic's SDK no longer has the keyword.
        sampled = {"temperature": player.temperature}
        options = {"extra_body": sampled, "max_tokens": player.max_new_tokens}
        async with HttpPolicy(player.dialect.value, player.base_url, player.served_model, options=options) as policy:
            yield policy
    else:
        from firstchair.rollout.desk.teacher import Teacher
        from firstchair.rollout.teacher_policy import TeacherPolicy

        yield TeacherPolicy(Teacher(mistake_rate=player.mistake_rate, seed=player.seed), name="desk-teacher")


class _Kept(NamedTuple):
    """Where sessions went, and how many were not there before."""

    where: str
    new: int


def _keep(episodes: Sequence[Episode], out: Path | None, store: TraceStore | None, *, force: bool) -> _Kept:
    """Write sessions to files or a store; no file is made when there is none."""
    from firstchair.traces.session_file import write_sessions

    if not episodes:
        return _Kept("nowhere", 0)
    sessions = [episode.session for episode in episodes]
    catalogs = {episode.session.catalog_id: episode.tools for episode in episodes}
    if out is not None:
        return _Kept(str(out), write_sessions(out, sessions, catalogs, force=force))
    assert store is not None
    # The same conversation recorded again differs in times alone: the first one stays.
    report = store.add(sessions, catalogs, on_conflict="replace" if force else "keep")
    return _Kept(store.url, report.added + report.replaced)


def _fail_on_errors(episodes: Sequence[Episode]) -> None:
    """A run with failed episodes has failed, whatever the others gave: exit code 1 and the reasons."""
    errors = [episode.error for episode in episodes if episode.error is not None]
    if errors:
        reasons = "; ".join(sorted(set(errors))[:3])
        raise RunFailed(f"{len(errors)} of {len(episodes)} episodes failed and were left out: {reasons}")
