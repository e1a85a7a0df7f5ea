from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from firstchair.chat.messages import text_message
from firstchair.core.concurrency import all_or_none
from firstchair.core.config import validate
from firstchair.core.errors import ConfigError, RunFailed
from firstchair.engines.base import ErrorKind, Generation, Stop
from firstchair.engines.pace import Pace
from firstchair.engines.scripted import ScriptedEngine
from firstchair.rewards.judge_client import JudgeClient, JudgeError, Question, Why
from firstchair.rewards.judge_server import JudgeServer, open_judge
from firstchair.rewards.verdict_cache import VerdictCache
from firstchair.testing.fault_server import Answer, FaultServer, Seen

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
KEY = "sk-judge-0123456789abcdef"


def read(value: Any) -> int:
    if not isinstance(value, dict) or set(value) != {"n"} or type(value["n"]) is not int:
        raise ValueError("want {n}")
    return value["n"]


def question(text: str = "How many?", number: int = 0, **fields: Any) -> Question[int]:
    return Question(f"q{number}", (text_message("user", text),), SCHEMA, read, **fields)


def said(text: str, finish: str = "stop") -> Answer:
    message = {"role": "assistant", "content": text}
    return Answer({"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": {}})


GOOD = said('{"n": 3}')


def server_of(base_url: str, **fields: Any) -> JudgeServer:
    return validate(JudgeServer, {"base_url": f"{base_url}/v1", "model": "m", **fields}, source="test")


def ask(script: Any, *questions: Question[int], **fields: Any) -> tuple[list[Any], FaultServer, JudgeClient]:
    """What each question gave, an exception included, from a judge on a real socket."""

    async def run(base_url: str) -> tuple[list[Any], JudgeClient]:
        client = open_judge(server_of(base_url, **fields))
        try:
            asked = (client.ask(one) for one in questions or (question(),))
            return await asyncio.gather(*asked, return_exceptions=True), client
        finally:
            await client.close()

    with FaultServer(script) as server:
        found, client = asyncio.run(run(server.base_url))
    return found, server, client


def in_turn(*answers: Answer) -> Any:
    return lambda _seen, number: answers[min(number, len(answers) - 1)]


def test_a_question_is_one_request_with_its_schema_and_sampling(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", KEY)
    found, server, _ = ask(in_turn(GOOD), temperature=0.5, max_tokens=99, api_key_env="JUDGE_KEY")
    assert found == [3]
    (seen,) = server.seen
    assert seen.path == "/v1/chat/completions"
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert (seen.body["model"], seen.body["temperature"], seen.body["max_tokens"]) == ("m", 0.5, 99)
    wanted = {"name": "reply", "strict": True, "schema": SCHEMA}
    assert seen.body["response_format"] == {"type": "json_schema", "json_schema": wanted}


@pytest.mark.parametrize(
    "first",
    [
        Answer({"error": {"message": "slow"}}, status=429, headers={"retry-after": "0"}),
        Answer({"error": {"message": "oops"}}, status=500, headers={"retry-after": "0"}),
        Answer(b"bad gateway", status=502, headers={"retry-after": "0"}),
        Answer({"choices": []}, cut_after=3),
    ],
    ids=["429", "500", "502", "cut"],
)
def test_what_may_pass_is_tried_again(first):
    found, server, client = ask(in_turn(first, GOOD))
    assert found == [3]
    assert len(server.seen) == 2
    assert client.counts == {"asked": 1}


@pytest.mark.parametrize(
    ("answer", "fields", "kind", "why", "retryable", "requests"),
    [
        (Answer({}, status=429, headers={"retry-after": "0"}), {}, "transport", ErrorKind.RATE_LIMITED, True, 2),
        (Answer({}, status=500, headers={"retry-after": "0"}), {}, "transport", ErrorKind.SERVER, True, 2),
        (Answer({}, status=401), {}, "config", ErrorKind.AUTH, False, 1),
        (Answer({}, status=404), {}, "config", ErrorKind.BAD_REQUEST, False, 1),
        (Answer(b"<html>"), {}, "protocol", ErrorKind.BAD_RESPONSE, False, 1),
        (Answer({"choices": []}), {}, "protocol", ErrorKind.BAD_RESPONSE, False, 1),
        (Answer({"choices": [{"message": 5}]}), {}, "protocol", ErrorKind.BAD_RESPONSE, False, 1),
        (Answer(b"\xff\xfe\x00"), {}, "protocol", ErrorKind.BAD_RESPONSE, False, 1),
        (Answer(stall=True), {"try_s": 0.05, "tries": 1}, "transport", ErrorKind.TIMEOUT, True, 1),
        (Answer(stall=True), {"question_s": 0.5}, "transport", Why.DEADLINE, True, 1),
        (Answer({"a": "b" * 5000}, drip_s=0.01), {"question_s": 0.5}, "transport", Why.DEADLINE, True, 1),
        (said("", "content_filter"), {}, "protocol", Why.REFUSED, False, 1),
    ],
    ids=[
        "429",
        "500",
        "401",
        "404",
        "html",
        "no choice",
        "bad choice",
        "bytes",
        "timeout",
        "hang",
        "drip",
        "refusal",
    ],
)
def test_a_judge_that_fails_gives_a_typed_error_and_never_a_value(answer, fields, kind, why, retryable, requests):
    (error,), server, client = ask(in_turn(answer), **{"tries": 2, **fields})
    assert isinstance(error, JudgeError)
    assert (error.kind, error.why, error.retryable) == (kind, why, retryable)
    assert len(server.seen) <= requests if why is Why.DEADLINE else len(server.seen) == requests
    assert client.counts[f"failed: {why}"] == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", Why.EMPTY),
        ("three", Why.BAD_JSON),
        ('Sure: {"n": 3}', Why.BAD_JSON),
        ('{"n": 3} {"n": 4}', Why.BAD_JSON),
        ('{"n": 3, "n": 4}', Why.BAD_JSON),
        ('{"n": NaN}', Why.BAD_JSON),
        ('{"n": true}', Why.BAD_SCHEMA),
        ('{"n": 3.0}', Why.BAD_SCHEMA),
        ('{"n": 3, "m": 1}', Why.BAD_SCHEMA),
        ("[3]", Why.BAD_SCHEMA),
    ],
)
def test_an_unreadable_verdict_gets_one_repair_call_and_no_more(text, why):
    (repaired,), server, client = ask(in_turn(said(text), GOOD))
    assert repaired == 3
    again = server.seen[1].body["messages"]
    assert again[0] == server.seen[0].body["messages"][0]
    assert again[1]["role"] == "assistant"
    assert str(why) in again[2]["content"]
    assert client.counts == {"asked": 2, "repaired": 1}
    (error,), server, _ = ask(in_turn(said(text)))
    assert isinstance(error, JudgeError)
    assert (error.kind, error.why, error.retryable) == ("protocol", why, False)
    assert len(server.seen) == 2


def test_a_cut_verdict_is_not_read_even_when_it_looks_whole():
    (error,), server, _ = ask(in_turn(said('{"n": 3}', "length")))
    assert isinstance(error, JudgeError)
    assert error.why is Why.TRUNCATED
    assert len(server.seen) == 2


@pytest.mark.parametrize(("stop", "why"), [(Stop.REFUSAL, Why.REFUSED), (Stop.CANCELLED, Why.ERROR)])
def test_a_generation_that_did_not_end_is_no_verdict(client_of, stop, why):
    client = client_of([Generation("", stop, text='{"n": 3}')])
    with pytest.raises(JudgeError) as caught:
        asyncio.run(client.ask(question()))
    assert caught.value.why is why


def test_no_error_holds_the_key_even_when_the_server_repeats_it(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "a plain word nobody would take for a key")

    def script(seen: Seen, _number: int) -> Answer:
        return Answer({"error": {"message": f"bad key {seen.headers['authorization']}"}}, status=401)

    (error,), _, _ = ask(script, api_key_env="JUDGE_KEY")
    assert isinstance(error, JudgeError)
    assert "nobody would take" not in f"{error} {error.detail} {error.args}"
    assert "bad key" in str(error)


@pytest.mark.parametrize("url", ["http://me:secret@127.0.0.1/v1", "http://127.0.0.1/v1?key=secret"])
def test_an_address_with_a_secret_is_refused_without_repeating_it(url):
    with pytest.raises(ConfigError, match="found a user or a query") as caught:
        open_judge(JudgeServer(base_url=url, model="m"))
    assert "secret" not in str(caught.value)


def test_a_key_that_is_not_set_is_named(monkeypatch):
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(ConfigError, match="JUDGE_KEY is not set"):
        open_judge(JudgeServer(base_url="http://127.0.0.1/v1", model="m", api_key_env="JUDGE_KEY"))


def test_equal_questions_are_asked_once_and_others_each():
    found, server, client = ask(
        in_turn(GOOD), question(), question(), question("Else?"), question(repeat=1), question(repeat=1)
    )
    assert found == [3] * 5
    assert len(server.seen) == 3
    assert client.counts == {"asked": 3, "cached": 2}


def test_equal_questions_fail_together_and_a_later_one_is_asked_afresh():
    async def run() -> None:
        answers = [Generation("", Stop.ERROR, error="timeout: slow", error_kind=ErrorKind.TIMEOUT), '{"n": 3}']
        engine = ScriptedEngine(answers)
        client = JudgeClient(engine)
        found = await asyncio.gather(*(client.ask(question()) for _ in range(5)), return_exceptions=True)
        assert [type(one) for one in found] == [JudgeError] * 5
        assert len(engine.seen) == 1
        assert await client.ask(question()) == 3

    asyncio.run(run())


def test_a_cancelled_question_is_asked_by_the_next_that_waits_for_it():
    async def run() -> None:
        answered = asyncio.Event()

        async def reply(request: Any) -> str:
            await answered.wait()
            return '{"n": 3}'

        engine = ScriptedEngine(reply)
        client = JudgeClient(engine)
        first, second = (asyncio.ensure_future(client.ask(question())) for _ in range(2))
        await asyncio.sleep(0.01)
        first.cancel()
        answered.set()
        assert await second == 3
        assert len(engine.seen) == 2

    asyncio.run(run())


def test_at_most_concurrency_questions_are_open_at_once():
    _, server, _ = ask(in_turn(GOOD), *(question(str(n), n) for n in range(12)), concurrency=3)
    assert len(server.seen) == 12
    assert server.most == 3


def test_calls_are_spaced_by_the_rate():
    async def run() -> list[float]:
        pace, loop = Pace(6000), asyncio.get_running_loop()
        times = []

        async def one() -> None:
            await pace.turn()
            times.append(loop.time())

        await asyncio.gather(*(one() for _ in range(4)))
        return times

    times = asyncio.run(run())
    assert times[3] - times[0] >= 0.0299


def keep(path: Path, **fields: Any) -> tuple[list[Any], FaultServer]:
    found, server, _ = ask(in_turn(GOOD), cache=str(path), **fields)
    return found, server


def test_a_verdict_is_kept_on_disk_under_its_content(tmp_path):
    path = tmp_path / "new" / "verdicts.db"
    assert len(keep(path)[1].seen) == 1
    found, server = keep(path)
    assert (found, server.seen) == ([3], [])
    assert len(keep(path, model="other")[1].seen) == 1
    assert len(keep(path, temperature=0.7)[1].seen) == 1
    assert len(keep(path, max_tokens=100)[1].seen) == 1


def test_what_fails_is_not_kept(tmp_path):
    path = tmp_path / "verdicts.db"
    ask(in_turn(said("hm")), cache=str(path))
    assert len(keep(path)[1].seen) == 1


def test_a_kept_verdict_that_cannot_be_read_is_asked_again(tmp_path):
    path = tmp_path / "verdicts.db"
    keep(path)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE verdicts SET verdict = '{\"m\": 1}'")
    database.close()
    found, server = keep(path)
    assert found == [3]
    assert len(server.seen) == 1
    assert keep(path)[1].seen == []


def test_a_cache_that_is_another_file_is_named(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to look like one" * 100)
    with pytest.raises(ConfigError, match=r"notes\.txt: cannot be used as a cache"):
        VerdictCache(path)


def test_a_cache_whose_disk_is_full_stops_the_run_by_name(tmp_path):
    cache = VerdictCache(tmp_path / "verdicts.db")
    cache._database.execute("PRAGMA max_page_count = 3")
    with pytest.raises(RunFailed, match=r"verdicts\.db: database or disk is full"):
        for number in range(1000):
            cache.put(str(number), "x" * 1000)
    cache.close()


def put_many(path: Path, name: str, count: int) -> None:
    cache = VerdictCache(path)
    for number in range(count):
        assert cache.put(str(number), name) in ("one", "two")
    cache.close()


def test_two_processes_share_a_cache_and_the_first_verdict_counts(tmp_path):
    path = tmp_path / "verdicts.db"
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=put_many, args=(path, name, 100)) for name in ("one", "two")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    cache = VerdictCache(path)
    assert all(cache.get(str(number)) in ("one", "two") for number in range(100))
    assert cache.put("0", "three") == cache.get("0") != "three"
    cache.close()


def test_all_or_none_cancels_and_awaits_the_others_and_raises_the_first():
    ended: list[str] = []
    failure = JudgeError("protocol", Why.BAD_JSON, "x")

    async def hang(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append(name)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise failure

    async def run() -> None:
        with pytest.raises(JudgeError) as caught:
            await all_or_none([hang("a"), fail(), hang("b")])
        assert caught.value is failure
        assert sorted(ended) == ["a", "b"]
        task = asyncio.ensure_future(all_or_none([hang("c"), hang("d")]))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sorted(ended) == ["a", "b", "c", "d"]

    asyncio.run(run())


def test_a_cancelled_question_leaves_no_request_open():
    async def run(base_url: str) -> None:
        client = open_judge(server_of(base_url))
        task = asyncio.ensure_future(client.ask(question()))
        while not server.seen:  # noqa: ASYNC110 - another thread appends to it
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) == 1
        await client.close()

    with FaultServer(in_turn(Answer(stall=True))) as server:
        asyncio.run(run(server.base_url))
