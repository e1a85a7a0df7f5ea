"""A DAgger run from a recipe: rounds of play, relabelling and training, resumable between rounds.

run.json, recipe.yaml        what was asked for
round-0/                     recovery of the model that the run began with
round-N/rollouts.jsonl       the episodes, as sessions; taught.json says what they gave
        records.jsonl        their lessons, as SFT records
        train.jsonl          what was trained on: the lessons of all rounds so far and a slice of earlier records
        sft/                 the training run; model/ is what it left
        recovery.jsonl       the episodes that begin behind mistakes, as sessions
        round.json           written last: the round is over
model                        a link to the last round's; result.json has all figures
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from firstchair.catalog.call_rules import Matchers
from firstchair.chat.trained import trained_renderer
from firstchair.core.atomic import make_dirs, write_bytes
from firstchair.core.clock import utc_now
from firstchair.core.errors import ConfigError, IntegrityError, RunFailed
from firstchair.core.jsonl import write_jsonl
from firstchair.core.progress import Progress, progress
from firstchair.core.seeds import seed_of
from firstchair.data.dagger_records import lesson_records, new_records, replay_slice
from firstchair.data.sft import SftRecord, read_sft, write_sft
from firstchair.engines.base import Sampling
from firstchair.engines.openmp import compute_threads
from firstchair.engines.transformers_engine import TransformersEngine
from firstchair.evals.completion import Completion, completion
from firstchair.evals.played import paired, read_played
from firstchair.evals.stats import careful_difference
from firstchair.rollout.dagger import Caps, DaggerPlan, MixedEpisode, run_dagger
from firstchair.rollout.dagger_teacher import Spent
from firstchair.rollout.desk.definitions import desk_catalog
from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.recovery import RecoveryCase, TakingOver, recovery_case
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.rollout.desk.teacher import Teacher
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.episodes import Episode, run_episodes
from firstchair.rollout.teacher_policy import TeacherPolicy
from firstchair.train.config import RunRecipe, SftData, SftRecipe
from firstchair.train.dagger_figures import DaggerFigures, RoundFigures, Taught, shown, taught_of
from firstchair.train.dagger_recipe import DaggerRecipe, RecoveryTest
from firstchair.train.dagger_teachers import check_teacher, open_teacher
from firstchair.train.loop import Say
from firstchair.train.models import merge_adapter, pick_device
from firstchair.train.precision import settled
from firstchair.train.run_dir import RunDir, open_run, refuse_both
from firstchair.train.sft import train_sft
from firstchair.train.tokenising import ProgressMaker

Figures = TypeVar("Figures", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class DaggerResult:
    """What a finished run leaves."""

    run_dir: Path
    model_dir: Path
    figures: DaggerFigures
    seconds: float
    """Of this call."""


def train_dagger(
    recipe: DaggerRecipe,
    *,
    resume: bool = False,
    force: bool = False,
    progress: ProgressMaker = progress,
    say: Say = lambda text: None,
) -> DaggerResult:
    """Run ``recipe`` to its end; ``resume`` goes on behind the last finished part, ``force`` replaces a run.

    A round that is over is not done again; of one that was stopped the episodes are kept once all were played, and
    its training goes on from its last checkpoint. Raises ``ConfigError``, ``DataError`` or ``IntegrityError`` before
    anything is played, ``RunFailed`` when a round gives nothing to learn or training fails, ``KeyboardInterrupt``
    after Ctrl-C.
    """
    refuse_both(resume=resume, force=force)
    recipe, started = settled(recipe), time.perf_counter()
    check_teacher(recipe.teacher)
    if recipe.replay.records is not None and not recipe.replay.records.is_file():
        raise ConfigError(f"replay.records: {recipe.replay.records}: no such file; check the path")
    renderer = trained_renderer(recipe.model)
    run = open_run(recipe, kind="dagger", template_hash=renderer.template_hash, resume=resume, force=force)
    return _Run(recipe, run, progress, say).whole(started)


class _Run:
    """The rounds of a run, each from what the one before left."""

    def __init__(self, recipe: DaggerRecipe, run: RunDir, progress: ProgressMaker, say: Say):
        self._recipe, self._run, self._progress, self._say = recipe, run, progress, say
        self._cases: list[RecoveryCase] = []

    def whole(self, started: float) -> DaggerResult:
        """All rounds that are not over yet."""
        rounds = [self._round(number) for number in range(self._recipe.rounds + 1)]
        link = self._run.model
        link.unlink(missing_ok=True)
        link.symlink_to(Path(f"round-{self._recipe.rounds}") / "model", target_is_directory=True)
        figures = self._figures(rounds)
        _write(self._run.result, figures)
        return DaggerResult(self._run.path, link, figures, time.perf_counter() - started)

    def _figures(self, rounds: Sequence[RoundFigures]) -> DaggerFigures:
        sides = [read_played(self._path(number) / "recovery.jsonl") for number in (0, self._recipe.rounds)]
        pairs = paired(*sides).pairs
        always = [1.0] * len(pairs)
        was, now = ([float(bool(pair[side].completed)) for pair in pairs] for side in (0, 1))
        difference = careful_difference((was, always), (now, always), [one.task_id for one, _ in pairs])
        return DaggerFigures(
            finished_at=utc_now(),
            before=rounds[0].recovery.completed,
            after=rounds[-1].recovery.completed,
            difference=difference,
            rounds=tuple(rounds),
        )

    def _path(self, number: int) -> Path:
        return self._run.path / f"round-{number}"

    def _model(self, number: int) -> Path:
        """What round ``number`` left; before the first that is the recipe's."""
        return self._path(number) / "model" if number else self._recipe.model

    def _round(self, number: int) -> RoundFigures:
        here = self._path(number)
        over = _read(here / "round.json", RoundFigures)
        if over is not None:
            return over
        make_dirs(here)
        seconds: dict[str, float] = {}
        learnt: dict[str, Any] = {}
        if number:
            with _timed(seconds, "episodes"):
                taught = self._play(number)
            with _timed(seconds, "training"):
                learnt = {"taught": taught, **self._train(number)}
        with _timed(seconds, "recovery"):
            recovery = asyncio.run(self._recovery(number))
        figures = RoundFigures(round=number, recovery=recovery, seconds=seconds, **learnt)
        _write(here / "round.json", figures)
        self._say(f"round {number}: recovery {shown(recovery.completed)}")
        return figures

    def _play(self, number: int) -> Taught:
        """The episodes of a round and their lessons, on disk."""
        here = self._path(number)
        taught = _read(here / "taught.json", Taught)
        if taught is None:
            taught = asyncio.run(self._played(number))
            _write(here / "taught.json", taught)
        return taught

    async def _played(self, number: int) -> Taught:
        recipe, here = self._recipe, self._path(number)
        count, caps = recipe.tasks.per_round, recipe.lessons
        tasks = make_tasks(number * count, recipe.tasks.seed)[-count:]
        plan = DaggerPlan(
            beta=recipe.beta.at(number),
            noise=recipe.noise,
            seed=recipe.seed,
            round=number,
            caps=Caps(derailed=caps.derailed, recovery=caps.recovery, agreed=caps.agreed),
            branch_steps=caps.branch_steps,
            concurrency=recipe.rollouts.concurrency,
            max_steps=recipe.rollouts.max_steps,
        )
        before = Spent()
        for earlier in range(1, number):
            found = _read(self._path(earlier) / "taught.json", Taught)
            before = before.plus(found.spent) if found is not None else before
        cache = self._run.path / "teacher.sqlite"
        matchers = Matchers.of(desk_catalog().matchers())
        async with (
            open_teacher(recipe.teacher, cache=cache, spent=before) as teacher,
            self._policy(number - 1, temperature=recipe.rollouts.temperature) as learner,
        ):
            with self._progress(f"round {number}: episodes", count, unit="episodes") as bar:
                episodes = await run_dagger(
                    DeskEnvironment,
                    tasks,
                    learner,
                    teacher,
                    plan,
                    astray=TeacherPolicy(Teacher(1.0, seed_of(recipe.seed, number)), name="desk-mistakes"),
                    matchers=matchers,
                    on_episode=lambda episode: bar.advance(),
                )
        write_jsonl(
            here / "rollouts.jsonl", (msgspec.to_builtins(episode.session) for episode in episodes), force=True
        )
        records = self._new_records(number, episodes, learner.name, teacher.name)
        kinds = Counter(str(record.meta["why"]) for record in records)
        taught = taught_of(
            episodes,
            beta=plan.beta,
            spent=teacher.spent.minus(before),
            failures=teacher.failures,
            records=kinds,
            seed=recipe.seed,
        )
        if not records:
            first = next((f" (the first: {episode.error})" for episode in episodes if episode.error), "")
            raise RunFailed(
                f"round {number} gave nothing to learn: {taught.episodes} of {count} episodes played, lost to "
                f"errors: {taught.errors or 'none'}{first}, without a label: {taught.failures or 'none'}"
            )
        write_sft(here / "records.jsonl", records, force=True)
        return taught

    def _new_records(
        self, number: int, episodes: Sequence[MixedEpisode], policy: str, teacher: str
    ) -> list[SftRecord]:
        seen: set[str] = set()
        for _ in new_records(self._records(number - 1), seen):
            pass
        made = chain.from_iterable(
            lesson_records(episode, round_number=number, policy=policy, teacher=teacher) for episode in episodes
        )
        return list(new_records(made, seen))

    def _records(self, last: int) -> Iterator[SftRecord]:
        """The lessons of rounds 1 to ``last``."""
        for number in range(1, last + 1):
            yield from read_sft(self._path(number) / "records.jsonl")

    def _train(self, number: int) -> dict[str, int]:
        """Train on all lessons so far and a slice of earlier records; the round's model is on disk after it."""
        here, replay = self._path(number), self._recipe.replay
        lessons, replayed = sum(1 for _ in self._records(number)), list[SftRecord]()
        if replay.share and replay.records is not None:
            seed = seed_of(self._recipe.seed, number, "replay")
            replayed = replay_slice(replay.records, lessons=lessons, share=replay.share, seed=seed)
        sft, model = RunDir(here / "sft"), here / "model"
        if not model.is_dir():
            begun = (sft.path / "run.json").is_file()
            if not begun:
                write_sft(here / "train.jsonl", chain(self._records(number), replayed), force=True)
            start = self._model(number - 1 if self._recipe.retrain == "present" else 0)
            train_sft(self._sft_recipe(number, start), resume=begun, progress=self._progress, say=self._say)
            if self._recipe.method.type == "lora":
                merge_adapter(sft.model, model, base=start)
            else:
                os.replace(sft.model, model)
            # Nothing is resumed from them any more, and each holds the optimizer's state.
            shutil.rmtree(sft.checkpoints, ignore_errors=True)
        done = sft.finished()
        assert done is not None
        return {
            "records": lessons + len(replayed),
            "replayed": len(replayed),
            "tokens": done.tokens,
            "steps": done.steps,
        }

    def _sft_recipe(self, number: int, start: Path) -> SftRecipe:
        recipe, renderer = self._recipe, trained_renderer(start)
        own = ("model", "out", "seed", "log")
        name = f"{recipe.log.name or recipe.out.name}-round-{number}"
        shared = {name: getattr(recipe, name) for name in RunRecipe.model_fields if name not in own}
        return SftRecipe(
            model=start,
            out=self._path(number) / "sft",
            data=SftData(
                train=self._path(number) / "train.jsonl",
                tool_format=renderer.tool_format.name,
                arguments=renderer.arguments,
                max_tokens=recipe.max_tokens,
                over_long=recipe.over_long,
            ),
            epochs=recipe.epochs,
            max_steps=recipe.max_steps,
            seed=seed_of(recipe.seed, number),
            log=recipe.log.model_copy(update={"name": name}),
            **shared,
        )

    async def _recovery(self, number: int) -> Completion:
        """The round's model goes on alone from the mistakes of every case."""
        test = self._recipe.recovery
        if not self._cases:
            with self._progress("recovery: cases", test.cases, unit="cases") as bar:
                self._cases = await _make_cases(test, self._recipe.seed, bar)
        episodes: list[Episode] = []
        done_before = max(len(case.actions) for case in self._cases)
        with self._progress(f"round {number}: recovery", len(self._cases), unit="episodes") as bar:
            async with self._policy(number, temperature=0.0) as policy:
                live = run_episodes(
                    DeskEnvironment,
                    [case.task for case in self._cases],
                    TakingOver(policy, self._cases),
                    seed=self._recipe.seed,
                    concurrency=self._recipe.rollouts.concurrency,
                    max_steps=done_before + self._recipe.rollouts.max_steps,
                )
                async with aclosing(live) as stream:
                    async for episode in stream:
                        episodes.append(episode)
                        bar.advance()
        episodes.sort(key=lambda episode: episode.number)
        sessions = (msgspec.to_builtins(episode.session) for episode in episodes)
        write_jsonl(self._path(number) / "recovery.jsonl", sessions, force=True)
        mistakes = {case.task.task_id: case.mistakes for case in self._cases}
        return completion(episodes, mistakes, seed=self._recipe.seed)

    @asynccontextmanager
    async def _policy(self, number: int, *, temperature: float) -> AsyncIterator[EnginePolicy]:
        """What round ``number`` left, as a policy; a tiny model decodes on one thread as fast as on two."""
        model = self._model(number)
        renderer = trained_renderer(model)
        sampling = Sampling(max_new_tokens=self._recipe.rollouts.max_new_tokens, temperature=temperature)
        with compute_threads(1):
            engine = TransformersEngine(model, renderer, device=str(pick_device(self._recipe.device)))
            try:
                yield EnginePolicy(engine, renderer, sampling, record_tokens=False)
            finally:
                await engine.close()


async def _make_cases(test: RecoveryTest, seed: int, bar: Progress) -> list[RecoveryCase]:
    cases: list[RecoveryCase] = []
    # Few tasks give no case; those behind them take their places.
    for task in make_tasks(2 * test.cases, test.seed):
        case = await recovery_case(task, mistakes=test.mistakes, seed=seed)
        if case is not None:
            cases.append(case)
            bar.advance()
        if len(cases) == test.cases:
            return cases
    raise RunFailed(
        f"recovery: {len(cases)} of {2 * test.cases} tasks can be completed after {test.mistakes} mistakes; expected "
        f"{test.cases}; lower recovery.mistakes or recovery.cases"
    )


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[name] = round(time.perf_counter() - started, 2)


def _write(path: Path, figures: msgspec.Struct) -> None:
    write_bytes(path, msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n", force=True)


def _read(path: Path, kind: type[Figures]) -> Figures | None:
    """The figures in ``path``; ``None`` when that part is not over."""
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise IntegrityError(f"damaged: {error}; delete it and resume", path=str(path)) from None
