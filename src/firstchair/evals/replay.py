"""Replay eval: stop before every recorded decision, ask the candidate for its one next action, score it, go on.

    golden set ─► prompts by session ─► engine ─► parse ─► score ─► decisions.jsonl
                     (shared prefixes)                               run.json

The recording advances the story, never the candidate, so one early mistake cannot cascade. A run that was killed
goes on where it stopped when the same command is given again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from firstchair import __version__
from firstchair.catalog.verdict import SCORER_VERSION, Scored, Scorer, Verdict
from firstchair.chat.actions import ParsedReply
from firstchair.chat.messages import Tool
from firstchair.core.clock import utc_now
from firstchair.core.errors import ConfigError, DataError, IntegrityError, RunFailed
from firstchair.core.progress import progress
from firstchair.data.golden.golden_set import GoldenSet
from firstchair.engines.base import Engine, ErrorKind, Generation, Request, Sampling, Stop
from firstchair.evals.reply import reply_of
from firstchair.evals.run_record import (
    RUN,
    SCHEMA_VERSION,
    Candidate,
    DecisionRow,
    GoldenRef,
    MadeKind,
    RowWriter,
    Run,
    RunRecord,
    SamplingRecord,
    load_run,
    read_record,
    read_rows,
    sorted_sha256,
    write_record,
)
from firstchair.traces.decisions import DecisionPoint

if TYPE_CHECKING:
    from firstchair.chat.renderer import Renderer
    from firstchair.traces.session import Session

UNRENDERABLE = "unrenderable"
"""Rule of a decision whose recorded context the candidate's template has no words for."""

WAVE_DECISIONS = 1024
WAVE_TOKENS = 4_000_000
"""How much is handed to the engine at once: whole sessions, until either bound is passed."""


@dataclass(frozen=True)
class ReplayOptions:
    """What changes how a run is made. All of it goes into the run record."""

    sampling: Sampling = field(default_factory=Sampling)
    constrain: bool = False
    """Force tool calls to be well-formed by their schemas."""
    salvage: bool = False
    """Also read wrong habits of calling; such rows are marked."""
    keep_ids: bool = False
    """Store token ids and log-probabilities in the rows."""
    seed: int = 0
    """Of the bootstrap intervals."""
    adapter: str = ""
    trained_template: str = ""
    """Hash of the template that the candidate was trained with, where it is known."""
    limit: int | None = None
    """Only the first so many decisions: a quick look, never comparable with a whole run."""
    resume: bool = True
    retry_errors: bool = False
    """Ask again for decisions whose row is an engine error."""


def replay(
    golden: GoldenSet, engine: Engine, renderer: Renderer | None, out: Path, options: ReplayOptions | None = None
) -> Run:
    """Replay ``golden`` against ``engine`` into the directory ``out`` and return the finished run.

    ``renderer`` renders prompts and parses raw text; without one messages are sent and the server parses.
    An unfinished run of the same golden set, candidate and options in ``out`` is taken up. Raises ``ConfigError``
    when ``out`` holds something else, ``IntegrityError`` naming what differs when it is a run of something else,
    ``RunFailed`` when the disk or the engine gives out; what was written before stays good.
    """
    return asyncio.run(replay_async(golden, engine, renderer, out, options or ReplayOptions()))


async def replay_async(
    golden: GoldenSet, engine: Engine, renderer: Renderer | None, out: Path, options: ReplayOptions
) -> Run:
    """``replay`` inside a running event loop. The caller closes the engine."""
    chosen = golden.decisions if options.limit is None else golden.decisions[: options.limit]
    if not chosen:
        raise ConfigError(f"golden set {golden.name!r} has no decisions to replay")
    record = _start(out, _record(golden, chosen, engine, renderer, options), options)
    done = read_rows(out)
    if options.retry_errors:
        done = {dp_id: row for dp_id, row in done.items() if row.obtained or not row.covered}
    todo = [decision for decision in chosen if decision.dp_id not in done]
    writer = RowWriter(out)
    counts: Counter[str] = Counter()
    try:
        with progress("replay", len(chosen), unit="decisions") as bar:
            bar.advance(len(chosen) - len(todo))
            async with aclosing(_rows(golden, todo, engine, renderer, options)) as rows:
                async for row in rows:
                    writer.append(row)
                    counts[row.scored.lenient] += 1
                    bar.advance(1, note=f"{counts['pass'] / counts.total():.0%} pass")
    finally:
        writer.close()
    write_record(out, msgspec.structs.replace(record, finished_at=utc_now()))
    return load_run(out)


def _record(
    golden: GoldenSet,
    chosen: Sequence[DecisionPoint],
    engine: Engine,
    renderer: Renderer | None,
    options: ReplayOptions,
) -> RunRecord:
    info = engine.info()
    if renderer is not None and info.template_hash and info.template_hash != renderer.template_hash:
        raise IntegrityError(
            f"the engine serves template {info.template_hash[:12]}… and prompts are rendered with "
            f"{renderer.template_hash[:12]}…; use one chat template for both",
            field="template_hash",
        )
    return RunRecord(
        golden=GoldenRef(
            name=golden.name,
            set_sha256=golden.set_sha256,
            sessions=len({decision.session_id for decision in chosen}),
            decisions=len(chosen),
            path=str(golden.path or ""),
        ),
        candidate=Candidate(
            model=info.model,
            engine=info.engine,
            adapter=options.adapter or str(info.details.get("adapter") or ""),
            revision=info.revision,
            template_hash=info.template_hash or (renderer.template_hash if renderer else ""),
            trained_template=options.trained_template,
            tool_format=renderer.tool_format.name if renderer else "",
            dtype=info.dtype,
            context_window=info.context_window,
            details=info.details,
        ),
        sampling=SamplingRecord(**asdict(options.sampling)),
        constrain=options.constrain and ("enforced" if info.enforces_constrain else "requested"),
        salvage=options.salvage,
        seed=options.seed,
        decisions_sha256=sorted_sha256(decision.dp_id for decision in chosen),
        scorer_version=SCORER_VERSION,
        code_version=__version__,
        created_at=utc_now(),
        schema_version=SCHEMA_VERSION,
    )


SAME_RUN = ("golden", "candidate", "sampling", "constrain", "salvage", "decisions_sha256", "scorer_version")
"""What must agree for a run to be taken up again."""
MAY_DIFFER = frozenset({"path", "details"})
"""Parts of those that change no verdict: where the set lies (its hash is compared), how the engine batches."""


def _start(out: Path, record: RunRecord, options: ReplayOptions) -> RunRecord:
    """Make the run directory, or take up the unfinished run in it."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        write_record(out, record)
        return record
    if not (out / RUN).is_file():
        raise ConfigError(f"{out} exists and is not a run directory; choose another --out")
    if not options.resume:
        raise ConfigError(f"{out} holds a run; choose another --out, or leave --no-resume away to go on with it")
    before = read_record(out)
    for name in SAME_RUN:
        old, new = _plain(getattr(before, name)), _plain(getattr(record, name))
        if isinstance(old, dict) and isinstance(new, dict):
            changed = [key for key in {**old, **new} if key not in MAY_DIFFER and old.get(key) != new.get(key)]
            if changed:
                key = changed[0]
                old, new, name = old.get(key), new.get(key), f"{name}.{key}"
            else:
                continue
        if old != new:
            raise IntegrityError(
                f"the run in {out} has {old!r}, this command {new!r}; choose another --out, or repeat the "
                "command that began it",
                path=str(out / RUN),
                field=name,
            )
    return before


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)


def _scorers(golden: GoldenSet) -> Mapping[str, Scorer]:
    """One scorer per catalog, shared by the sessions that were offered it."""
    by_catalog: dict[str, Scorer] = {}
    for session_id, session in golden.sessions.items():
        if session.catalog_id not in by_catalog:
            by_catalog[session.catalog_id] = Scorer(golden.tools(session_id), golden.rules)
    return by_catalog


@dataclass(frozen=True)
class _Asked:
    """A decision with its prompt, ready for the engine."""

    decision: DecisionPoint
    session: Session
    tools: tuple[Tool, ...]
    scorer: Scorer
    prompt: tuple[int, ...] | DataError | None
    """``None`` without a renderer; the error where the template cannot say this context."""

    @property
    def prompt_ids(self) -> tuple[int, ...] | None:
        return None if isinstance(self.prompt, DataError) else self.prompt

    def unaskable(self, window: int | None, reply_tokens: int) -> tuple[str, str] | None:
        """Rule and reason when there is nothing to send."""
        if isinstance(self.prompt, DataError):
            return UNRENDERABLE, str(self.prompt)
        length = len(self.prompt or ())
        if window is None or length + reply_tokens <= window:
            return None
        return ErrorKind.CONTEXT_OVERFLOW, f"prompt {length:,} tokens, reply {reply_tokens:,}, window {window:,}"


async def _rows(
    golden: GoldenSet,
    todo: Sequence[DecisionPoint],
    engine: Engine,
    renderer: Renderer | None,
    options: ReplayOptions,
) -> AsyncGenerator[DecisionRow]:
    window = engine.info().context_window
    for wave in _waves(golden, todo, renderer, _scorers(golden)):
        asked: dict[str, _Asked] = {}
        for item in wave:
            if unaskable := item.unaskable(window, options.sampling.max_new_tokens):
                rule, why = unaskable
                yield _row(item, None, None, _no_action(rule), options, why=why)
            else:
                asked[item.decision.dp_id] = item
        requests = [_request(item, options) for item in asked.values()]
        if not requests:
            continue
        async with aclosing(cast("Any", engine.generate(requests))) as generations:
            async for generation in generations:
                if generation.request_id not in asked:
                    raise RunFailed(f"the engine answered {generation.request_id!r}, which was not asked for")
                item = asked.pop(generation.request_id)
                reply = reply_of(generation, item.tools, renderer, salvage=options.salvage)
                scored = (
                    _no_action(generation.error_kind or generation.stop)
                    if reply is None
                    else item.scorer.score(item.decision, reply)
                )
                yield _row(item, generation, reply, scored, options)
        if asked:
            raise RunFailed(
                f"the engine gave no answer to {len(asked)} of {len(requests)} requests ({next(iter(asked))}, …); "
                "run the same command again to go on"
            )


def _no_action(why: str) -> Scored:
    return Scored(strict=Verdict.ERROR, lenient=Verdict.ERROR, rule=str(why))


def _request(item: _Asked, options: ReplayOptions) -> Request:
    return Request(
        request_id=item.decision.dp_id,
        messages=item.session.messages[: item.decision.context_end],
        tools=item.tools,
        prompt_ids=item.prompt_ids,
        sampling=options.sampling,
        group=item.session.session_id,
        constrain=options.constrain,
    )


def _waves(
    golden: GoldenSet, todo: Sequence[DecisionPoint], renderer: Renderer | None, scorers: Mapping[str, Scorer]
) -> Iterator[list[_Asked]]:
    """Whole sessions together, in order, so that an engine can share prefixes and memory stays bounded."""
    by_session: dict[str, list[DecisionPoint]] = {}
    for decision in todo:
        by_session.setdefault(decision.session_id, []).append(decision)
    wave: list[_Asked] = []
    tokens = 0
    for session_id, decisions in by_session.items():
        session, tools = golden.sessions[session_id], golden.tools(session_id)
        prompts: Sequence[tuple[int, ...] | DataError | None] = (
            session_prompts(session, decisions, tools, renderer) if renderer else [None] * len(decisions)
        )
        for decision, prompt in zip(decisions, prompts, strict=True):
            wave.append(_Asked(decision, session, tools, scorers[session.catalog_id], prompt))
            tokens += len(wave[-1].prompt_ids or ())
        if len(wave) >= WAVE_DECISIONS or tokens >= WAVE_TOKENS:
            yield wave
            wave, tokens = [], 0
    if wave:
        yield wave


def session_prompts(
    session: Session, decisions: Sequence[DecisionPoint], tools: tuple[Tool, ...], renderer: Renderer
) -> list[tuple[int, ...] | DataError]:
    """Prompt ids of each decision, or why the template cannot say its context (an image, a malformed call before it).

    With a template that only appends, the session is rendered once and every prompt is a prefix of it; otherwise
    each prompt is rendered by itself.
    """
    if renderer.append_only:
        last = max(decision.context_end for decision in decisions)
        # A conversation that cannot be rendered whole (a recording that ends in a way the template has no word
        # for, say) may still have a prompt at each decision.
        with contextlib.suppress(DataError):
            whole = renderer.conversation(session.messages[: last + 1], tools)
            starts = {span.message_index: span.start for span in whole.spans if span.role == "assistant"}
            return [tuple(whole.ids[: starts[decision.context_end]]) for decision in decisions]
    prompts: list[tuple[int, ...] | DataError] = []
    for decision in decisions:
        try:
            prompts.append(tuple(renderer.prompt_ids(session.messages[: decision.context_end], tools)))
        except DataError as error:
            prompts.append(error)
    return prompts


def _row(
    item: _Asked,
    generation: Generation | None,
    reply: ParsedReply | None,
    scored: Scored,
    options: ReplayOptions,
    *,
    why: str = "",
) -> DecisionRow:
    """``why`` nothing was asked, when there is no generation."""
    decision = item.decision
    gold = decision.gold or decision.observed
    row = DecisionRow(
        dp_id=decision.dp_id,
        session_id=decision.session_id,
        turn=decision.turn,
        gold_kind=gold.kind,
        gold_tools=tuple(call.name for call in gold.calls),
        made_kind=_made_kind(reply, scored),
        scored=scored,
        tags=decision.tags,
        provenance=decision.provenance,
        verified=decision.verified,
        known_bad_call=any(bad.calls for bad in decision.known_bad),
        covered=generation is not None and scored.rule != ErrorKind.CONTEXT_OVERFLOW,
        prompt_tokens=len(item.prompt_ids or ()),
    )
    if generation is None:
        return msgspec.structs.replace(row, error=why)
    made = msgspec.structs.replace(
        row,
        stop=str(generation.stop),
        error=generation.error if generation.stop is Stop.ERROR else None,
        text=generation.text,
        prompt_tokens=generation.prompt_tokens or row.prompt_tokens,
        output_tokens=len(generation.ids) if generation.ids is not None else generation.output_tokens,
        cached_tokens=generation.cached_tokens,
        latency_s=round(generation.latency_s, 6),
    )
    if options.keep_ids:
        made = msgspec.structs.replace(made, ids=generation.ids, logprobs=generation.logprobs)
    if reply is None:
        return made
    return msgspec.structs.replace(
        made,
        made_tools=tuple(item.scorer.matchers.tool_name(call.name) for call in reply.calls)
        if made.made_kind == "tool_call"
        else (),
        action=reply.action(),
        problems=reply.problems,
        salvaged=reply.salvaged,
    )


def _made_kind(reply: ParsedReply | None, scored: Scored) -> MadeKind:
    if reply is None:
        return "none"
    if scored.lenient is Verdict.MALFORMED and scored.rule != "schema_violation":
        return "malformed"
    return "tool_call" if reply.calls else "final_reply"
