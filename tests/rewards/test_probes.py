from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from tests.rewards.conftest import blocks_of, picks, sample, says, text_of

from firstchair.chat.actions import Action
from firstchair.core.config import validate
from firstchair.core.errors import ConfigError, GradingError
from firstchair.engines.base import ErrorKind, Generation, Stop
from firstchair.engines.scripted import ScriptedEngine
from firstchair.rewards.composition import Composition
from firstchair.rewards.judge_client import JudgeClient
from firstchair.rewards.judge_server import open_judge
from firstchair.rewards.probes import WORTHLESS, ProbePair, pairs_from_expert, probe_rewards
from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.rollout.desk.teacher import Teacher
from firstchair.rollout.python_environment import PythonEnvironment
from firstchair.testing.environment import WordEnvironment, WordExpert, WordTask
from firstchair.testing.fault_server import Answer, FaultServer, Seen

DONE = {"name": "done", "kind": "verifier", "check": "completed"}
FORM = {"name": "form", "kind": "verifier", "check": "structured", "output_schema": {"type": "object"}}
PROBE = {"question": "Weather?", "good": "It rains; take a coat.", "bad": "Whatever."}
MANNER = {
    "name": "manner",
    "kind": "judge",
    "mode": "rubric",
    "dimensions": [{"name": "tone", "question": "Polite?"}],
    "probe": PROBE,
    "when": {"row": ["chat", "mail"]},
}
BETTER = {"name": "better", "kind": "judge", "mode": "pairwise", "criterion": "politer", "probe": PROBE}


def made(*components: dict[str, Any]) -> Composition:
    judge = {"base_url": "http://127.0.0.1:1/v1", "model": "m"}
    return validate(Composition, {"components": list(components), "judge": judge}, source="test")


def probe(composition: Composition, *pairs: ProbePair, judge: Any = None) -> None:
    client = None if judge is None else JudgeClient(ScriptedEngine(judge))
    asyncio.run(probe_rewards(composition, pairs, client))


def pair(good: str, bad: str, **labels: Any) -> ProbePair:
    return ProbePair(sample(good, 0, labels=labels), sample(bad, 1, labels=labels))


def scoring(**scores: int) -> Any:
    """A rubric judge: the score of the probe's good answer, its bad one, and anything else."""

    def reply(request: Any) -> Any:
        answer = text_of(request)["answer"]
        word = "good" if answer == PROBE["good"] else "bad" if answer == PROBE["bad"] else "other"
        return says({"reason": "r", "tone": scores[word]})

    return reply


def test_a_reward_that_tells_them_apart_passes():
    probe(made(FORM), pair("{}", "no"))
    probe(made(MANNER), judge=scoring(good=2, bad=1, other=0))


@pytest.mark.parametrize(
    ("good", "bad", "found"),
    [("no", "no", "found 0 for s0 and 0 for s1"), ("no", "{}", "found 0 for s0 and 1 for s1")],
)
def test_a_reward_that_cannot_stops_the_run_and_names_it_and_both_values(good, bad, found):
    with pytest.raises(ConfigError, match=f"reward component form cannot tell .*: {found}"):
        probe(made(FORM), pair(good, bad))


def test_a_pair_may_agree_where_another_is_told_apart():
    probe(made({**FORM, "when": {"row": "a"}}), pair("{}", "no", row="a"))
    with pytest.raises(ConfigError, match="component reward cannot tell"):
        probe(made(FORM), pair("{}", "no"), pair("{}", "[]{"), pair("{}", "{}"))


def test_a_negative_weight_on_quality_is_found():
    with pytest.raises(ConfigError, match=r"form cannot tell .*: found -1 for s0 and 0 for s1"):
        probe(made({**FORM, "weight": -1.0}), pair("{}", "no"))


SIZE = {"name": "size", "kind": "length", "weight": -1.0, "bounds": [0, 10]}


def test_what_a_probe_used_up_is_left_out_because_a_scripted_expert_used_nothing():
    probe(made(FORM, SIZE), pair("{}", "no"))


def test_a_reward_of_costs_alone_is_refused():
    with pytest.raises(ConfigError, match="cost, latency and length alone reward doing nothing"):
        probe(made(SIZE), pair("{}", "no"))


def test_a_reward_that_gives_no_value_is_named_with_its_reason():
    with pytest.raises(
        GradingError, match=r"done gives no value for the probe s0: no_episode: .*good: none, bad: none"
    ):
        probe(made(DONE), pair("{}", "no"))
    down = Generation("", Stop.ERROR, error="connection: refused", error_kind=ErrorKind.CONNECTION)
    with pytest.raises(GradingError, match="manner gives no value for the probe probe:manner:good: connection"):
        probe(made(MANNER), judge=lambda request: down)


def test_a_component_without_any_known_answer_is_named():
    with pytest.raises(ConfigError, match="component form: found no known-good and known-bad answer"):
        probe(made({**FORM, "when": {"row": "chat"}}), pair("{}", "no", row="file"))


def test_a_judge_that_calls_everything_good_stops_the_run():
    with pytest.raises(ConfigError, match=r"manner cannot tell .*: found 1 for probe:manner:good and 1 for"):
        probe(made(MANNER), judge=scoring(good=2, bad=2, other=0))


def test_a_judge_that_a_worthless_answer_wins_over_stops_the_run():
    with pytest.raises(ConfigError, match=r"manner: found 1 for the worthless answer ':' and 1 for a good one"):
        probe(made(MANNER), judge=scoring(good=2, bad=1, other=2))


@pytest.mark.parametrize("text", [text for text in WORTHLESS if text.strip()])
def test_a_pairwise_judge_that_falls_for_one_phrase_stops_the_run(text):
    def reply(request: Any) -> Any:
        shown = text_of(request)
        first, second = shown["answer A"], shown["answer B"]
        if text in (first, second):
            return picks("A" if first == text else "B")
        return picks("A" if first == PROBE["good"] else "B")

    with pytest.raises(ConfigError, match="better: found 1 for the worthless answer"):
        probe(made(BETTER), judge=reply)


def test_a_pairwise_judge_that_prefers_a_place_stops_the_run():
    with pytest.raises(ConfigError, match=r"better cannot tell .*: found 0\.5 .* and 0\.5"):
        probe(made(BETTER), judge=lambda request: picks("A"))


def served(rubric: Callable[[str], int], *, slow_s: float = 0.0) -> Any:
    """A judge's server: ``rubric`` scores answers, and of two the better scored wins. Scores come slowly."""

    def script(seen: Seen, number: int) -> Answer:
        shown = blocks_of(seen.body["messages"][1]["content"])
        if "answer" in shown:
            value: dict[str, Any] = {"reason": "r", "tone": rubric(shown["answer"])}
        else:
            first, second = rubric(shown["answer A"]), rubric(shown["answer B"])
            value = {"reason": "r", "winner": "A" if first > second else "B" if second > first else "tie"}
        said = {"role": "assistant", "content": orjson.dumps(value).decode()}
        drip_s = slow_s if "tone" in value else 0.0
        return Answer({"choices": [{"message": said, "finish_reason": "stop"}]}, drip_s=drip_s)

    return FaultServer(script)


def probe_at(server: FaultServer, concurrency: int) -> Counter[str]:
    """Probe a rubric and a comparison; returns what the judge's client counted."""
    judge = {"base_url": f"{server.base_url}/v1", "model": "m", "concurrency": concurrency, "tries": 1}
    components = [{**MANNER, "weight": 0.1}, {**BETTER, "weight": 0.1}]
    composition = validate(Composition, {"components": components, "judge": judge}, source="test")

    async def probed() -> Counter[str]:
        client = open_judge(composition.judge)
        try:
            await probe_rewards(composition, (), client)
            return client.counts
        finally:
            await client.close()

    return asyncio.run(probed())


def honest(answer: str) -> int:
    return 2 if answer == PROBE["good"] else 0


@pytest.mark.parametrize("concurrency", [1, 6])
def test_as_many_probes_are_asked_at_once_as_the_judge_takes_and_none_twice(concurrency):
    with served(honest) as server:
        counts = probe_at(server, concurrency)
    # Each pair alone has two questions in the air, so only more than two show that pairs are asked at once.
    assert server.most == 1 if concurrency == 1 else 2 < server.most <= 6
    said = [text for text in WORTHLESS if text.strip()]
    rubric, compared = 2 + len(said), 2 * (1 + len(said))
    assert len(server.seen) == counts["asked"] == rubric + compared
    assert len({orjson.dumps(seen.body) for seen in server.seen}) == len(server.seen)


def test_the_first_component_that_fails_is_named_whichever_answer_comes_first():
    with (
        served(lambda answer: 1, slow_s=0.001) as server,
        pytest.raises(ConfigError, match=r"component manner cannot tell .* for probe:manner:good"),
    ):
        probe_at(server, 64)
    assert any("answer A" in blocks_of(seen.body["messages"][1]["content"]) for seen in server.seen)


def test_an_environments_expert_gives_known_answers():
    async def run(tasks: list[WordTask]) -> list[ProbePair]:
        return await pairs_from_expert(WordEnvironment, tasks, WordExpert())

    pairs = asyncio.run(run([WordTask(task_id="a", words=("fox", "owl"))]))
    assert [(one.good.group, one.good.episode.completed, one.bad.episode.completed) for one in pairs] == [
        ("a", True, False)
    ] * 4
    probe(made(DONE), *pairs)
    with pytest.raises(ConfigError, match="the expert completes none of 1 tasks"):
        asyncio.run(run([WordTask(task_id="a", words=("fox",), fault="verify")]))


class Riddle:
    """Played without any tool."""

    def reset(self, task: Any, seed: int) -> str:
        return "What is six times seven?"

    def step(self, message: Any) -> Any:
        self.said = message["content"]
        return [], True

    def verify(self) -> bool:
        return self.said == "42"


class Knows:
    def act(self, messages: Any, tools: Any) -> Action:
        return Action(kind="final_reply", text="42")


def test_an_environment_without_tools_has_known_answers_too():
    tasks = [WordTask(task_id="a", words=())]
    pairs = asyncio.run(pairs_from_expert(lambda: PythonEnvironment(Riddle()), tasks, Knows()))
    probe(made(DONE), *pairs)


def test_the_desks_expert_proves_the_verifiers_of_an_episode():
    pairs = asyncio.run(pairs_from_expert(DeskEnvironment, make_tasks(2, seed=3), Teacher()))
    probe(
        made(DONE, {**DONE, "name": "c", "check": "checks"}, {**DONE, "name": "v", "check": "no_violations"}), *pairs
    )
