import asyncio
import contextlib
import json
import socket
import sqlite3
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from firstchair.core.errors import ConfigError, UpstreamError
from firstchair.tools import db_worker
from firstchair.tools.base import Failure, ToolFailed
from firstchair.tools.db_query import DbQuery, DbQuerySpec, open_database
from firstchair.tools.db_rows import MAX_ROW_CHARS, row_line

SHOP = (
    "CREATE TABLE goods (id INTEGER PRIMARY KEY, name TEXT, price REAL)",
    "INSERT INTO goods VALUES (1, 'tea', 2.5), (2, 'café', NULL), (3, 'salt', 1)",
)


def ask(url: str, sql: str, **options: object) -> str:
    spec = DbQuerySpec.model_validate({"url": url, **options})
    return asyncio.run(DbQuery(spec, open_database(spec)).run({"sql": sql}))


def fails(kind: Failure, words: str, url: str, sql: str, **options: object) -> None:
    with pytest.raises(ToolFailed) as failed:
        ask(url, sql, **options)
    assert words in str(failed.value)
    assert failed.value.kind is kind


@pytest.fixture
def shop(tmp_path: Path) -> str:
    path = tmp_path / "a shop#.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in SHOP:
            connection.execute(statement)
        connection.commit()
    return f"sqlite:///{path}"


@pytest.fixture(scope="module")
def server(postgres_database: str) -> Iterator[str]:
    """A database with the shop, as a role that owns it and is no superuser."""
    admin = create_engine(postgres_database, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text("CREATE ROLE keeper LOGIN"))
        connection.execute(text("CREATE SCHEMA AUTHORIZATION keeper"))
    url = make_url(postgres_database).set(username="keeper")
    owner = create_engine(url, isolation_level="AUTOCOMMIT")
    with owner.connect() as connection:
        for statement in SHOP:
            connection.execute(text(statement))
    owner.dispose()
    yield url.set(drivername="postgresql").render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(text("DROP OWNED BY keeper CASCADE"))
        connection.execute(text("DROP ROLE keeper"))
    admin.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> str:
    """The shop, once on each database."""
    return str(request.getfixturevalue("shop" if request.param == "sqlite" else "server"))


def rows(answer: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in answer.split("\n")]


def test_rows_come_as_json_with_their_columns(database: str):
    assert rows(ask(database, "SELECT id, name, price FROM goods ORDER BY id; ")) == [
        {"id": 1, "name": "tea", "price": 2.5},
        {"id": 2, "name": "café", "price": None},
        {"id": 3, "name": "salt", "price": 1},
    ]
    assert rows(ask(database, "WITH x AS (SELECT 1 AS n) SELECT n FROM x -- the end")) == [{"n": 1}]
    assert rows(ask(database, "VALUES (7)"))[0].popitem()[1] == 7
    assert ask(database, "SELECT 1 FROM goods WHERE id > 99") == "no rows"


def test_rows_are_fetched_up_to_a_number(database: str):
    *found, note = ask(database, "SELECT id FROM goods ORDER BY id", max_rows=2).split("\n")
    assert [json.loads(line)["id"] for line in found] == [1, 2]
    assert note == "[the first 2 rows; there are more]"
    assert "more" not in ask(database, "SELECT id FROM goods", max_rows=3)


CHANGES = (
    "INSERT INTO goods VALUES (4, 'x', 1)",
    "UPDATE goods SET price = 0",
    "DELETE FROM goods",
    "DROP TABLE goods",
    "CREATE TABLE mine (n INTEGER)",
    "WITH x AS (SELECT 1) INSERT INTO goods VALUES (4, 'x', 1)",
    "SELECT 1; DROP TABLE goods",
    "COMMIT; DELETE FROM goods",
    "BEGIN",
    "SELECT 1) AS q; DROP TABLE goods; SELECT (1",
)


def test_a_read_only_database_is_never_changed(database: str):
    before = ask(database, "SELECT * FROM goods ORDER BY id")
    for sql in CHANGES:
        with pytest.raises(ToolFailed) as failed:
            ask(database, sql)
        assert failed.value.kind in (Failure.REFUSED, Failure.FAILED), sql
    assert ask(database, "SELECT * FROM goods ORDER BY id") == before
    with pytest.raises(ToolFailed):
        ask(database, "SELECT * FROM mine")


def test_a_statement_changes_what_it_may_where_writing_is_allowed(database: str):
    ask(database, "CREATE TABLE own (n INTEGER)", read_only=False)
    assert ask(database, "INSERT INTO own VALUES (1), (2)", read_only=False) == "2 rows changed"
    assert rows(ask(database, "INSERT INTO own VALUES (3) RETURNING n", read_only=False)) == [{"n": 3}]
    assert rows(ask(database, "SELECT count(*) AS n FROM own", read_only=False)) == [{"n": 3}]
    ask(database, "DROP TABLE own", read_only=False)


def test_a_wrong_statement_is_explained(database: str):
    fails(Failure.FAILED, "goodies", database, "SELECT * FROM goodies")
    fails(Failure.FAILED, "syntax", database, "SELEC 1")
    fails(Failure.FAILED, "prise", database, "SELECT prise FROM goods")


def test_a_slow_query_is_stopped(database: str):
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    fails(Failure.TIMEOUT, "stopped after 0.05 s", database, endless, timeout_s=0.05)


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("ATTACH '/tmp/firstchair-attached.db' AS other", "not authorized"),
        ("PRAGMA query_only = OFF", "not authorized"),
        ("PRAGMA journal_mode = DELETE", "not authorized"),
        ("SELECT load_extension('x')", "not authorized to use function"),
        ("SELECT fts3_tokenizer('x', x'4141414141414141')", "not authorized to use function"),
        ("SELECT printf('%.*c', 2000000000, 'x')", "not authorized to use function"),
        ("SELECT format('%2000000000d', 1)", "not authorized to use function"),
        ("VACUUM INTO '/tmp/firstchair-attached.db'", "authorization denied"),
    ],
)
def test_sqlite_reaches_no_other_file_and_no_setting(shop: str, sql: str, words: str):
    fails(Failure.REFUSED, words, shop, sql)
    fails(Failure.REFUSED, words, shop, sql, read_only=False)
    assert not Path("/tmp/firstchair-attached.db").exists()


def test_sqlite_compares_no_long_pattern_in_one_go(shop: str):
    fails(Failure.FAILED, "pattern too complex", shop, f"SELECT 'x' LIKE '{'%x' * 600}'")


def test_sqlite_describes_its_tables(shop: str):
    assert [row["name"] for row in rows(ask(shop, "PRAGMA table_info(goods)"))] == ["id", "name", "price"]
    assert "CREATE TABLE goods" in ask(shop, "SELECT sql FROM sqlite_master")


def test_sqlite_makes_no_value_that_takes_all_memory(shop: str):
    fails(Failure.FAILED, "too big", shop, "SELECT zeroblob(900000000)")
    assert ask(shop, "SELECT zeroblob(5000) AS b, 1e999 AS i") == '{"b": "<5,000 bytes>", "i": "inf"}'
    line = ask(shop, "SELECT replace(hex(zeroblob(50000)), '0', 'x') AS t")
    assert len(line) == MAX_ROW_CHARS
    assert line.endswith("x…")


def test_a_function_that_no_clock_stops_is_killed_with_its_process(shop: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(db_worker, "GRACE_S", 0.5)
    half_a_minute = "SELECT instr(zeroblob(999000), zeroblob(400000) || x'01')"
    fails(Failure.TIMEOUT, "stopped after 0.01 s", shop, half_a_minute, timeout_s=0.01)


def test_a_row_of_many_large_values_costs_its_process_and_not_ours(shop: str):
    wide = f"WITH one AS (SELECT hex(zeroblob(490000)) AS x) SELECT {'x, ' * 600} x FROM one"
    fails(Failure.TOO_LARGE, "more than 512 MB", shop, wide)


def test_a_locked_sqlite_is_no_fault_of_the_query(shop: str):
    path = make_url(shop).database
    assert path is not None
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UpstreamError, match="locked") as raised:
            ask(shop, "SELECT 1 FROM goods", timeout_s=0.05)
    assert raised.value.retryable


def test_a_file_that_is_no_database_is_the_users_mistake(tmp_path: Path):
    (tmp_path / "x.db").write_text("no database, and long enough to be looked at " * 20)
    with pytest.raises(ConfigError, match="not a database"):
        ask(f"sqlite:///{tmp_path / 'x.db'}", "SELECT 1")
    with pytest.raises(ConfigError, match="no such file"):
        ask(f"sqlite:///{tmp_path / 'y.db'}", "SELECT 1")


ESCAPES = (
    "SELECT set_config('transaction_read_only', 'off', true), nextval('counter')",
    "SET TRANSACTION READ WRITE",
    "COPY goods TO '/tmp/firstchair-copy'",
    "COPY (SELECT 1) TO PROGRAM 'id'",
    "SELECT lo_import('/etc/passwd')",
    "SELECT pg_read_file('/etc/passwd')",
    "DO $$ BEGIN DELETE FROM goods; END $$",
    "EXPLAIN ANALYZE DELETE FROM goods",
)


def test_postgresql_cannot_be_talked_out_of_reading_only(server: str):
    ask(server, "CREATE SEQUENCE counter", read_only=False)
    for sql in ESCAPES:
        with pytest.raises(ToolFailed) as failed:
            ask(server, sql)
        assert failed.value.kind in (Failure.REFUSED, Failure.FAILED), sql
    assert rows(ask(server, "SELECT count(*) AS n FROM goods")) == [{"n": 3}]


def test_postgresql_cuts_a_large_value_where_it_is_made(server: str):
    line = ask(server, "SELECT repeat('x', 10000000) AS t")
    assert len(line) == MAX_ROW_CHARS
    assert line.endswith("x…")


@pytest.mark.parametrize("power", ["tester", "pg_execute_server_program", "pg_write_server_files"])
def test_a_superuser_and_who_may_become_one_is_refused(postgres_database: str, power: str):
    """``set_config('role', …)`` and then ``query_to_xml`` read the server's files in a read-only transaction."""
    admin = create_engine(postgres_database, isolation_level="AUTOCOMMIT")
    url = make_url(postgres_database)
    power = str(url.username) if power == "tester" else power
    with pytest.raises(ConfigError, match="is or may become"):
        ask(postgres_database, "SELECT 1")
    with admin.connect() as connection:
        connection.execute(text("CREATE ROLE heir LOGIN NOINHERIT"))
        try:
            connection.execute(text(f'GRANT "{power}" TO heir'))
            with pytest.raises(ConfigError, match=f"'heir' is or may become '{power}'"):
                ask(url.set(username="heir").render_as_string(hide_password=False), "SELECT 1")
        finally:
            connection.execute(text("DROP ROLE heir"))
    admin.dispose()


@pytest.mark.parametrize(
    ("kind", "words", "sql"),
    [
        (Failure.TOO_LARGE, "16 MB", "/* as big */ SELECT repeat('x', 1000000) FROM generate_series(1, 17)"),
        (Failure.TOO_LARGE, "16 MB", "INSERT INTO wide SELECT repeat('x', 17000000) RETURNING n"),
        (Failure.REFUSED, "use SELECT", "COPY goods TO STDOUT"),
        (Failure.REFUSED, "use INSERT", "COPY goods FROM STDIN"),
        (Failure.FAILED, "without NUL", "SELECT 'a\0b'"),
        (Failure.FAILED, "write values into", "SELECT $1::int"),
        (Failure.FAILED, "not UTF-8", "SELECT set_config('client_encoding', 'EUC_JIS_2004', false), chr(233)"),
    ],
)
def test_postgresql_gives_no_more_than_is_read_and_no_word_of_a_broken_server(
    server: str, kind: Failure, words: str, sql: str
):
    ask(server, "CREATE TABLE IF NOT EXISTS wide (n TEXT)", read_only=False)
    fails(kind, words, server, sql, read_only=False)
    assert ask(server, "SELECT n FROM wide") == "no rows"


def test_postgresql_stops_at_the_rows_that_are_shown(server: str):
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    assert len(ask(server, endless, read_only=False).split("\n")) == 101


def test_postgresql_ends_a_statement_that_outlives_its_client(server: str):
    setting = "SELECT current_setting('client_connection_check_interval') AS s"
    assert rows(ask(server, setting)) == [{"s": "1s"}]


def test_a_server_that_asks_for_a_password_names_the_setting():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        wants_scram = b"R" + struct.pack("!ii", 23, 10) + b"SCRAM-SHA-256\0\0"

        def answer() -> None:
            client, _ = listening.accept()
            with client:
                client.recv(8)
                client.sendall(b"N")  # no TLS
                client.recv(1000)
                client.sendall(wants_scram)
                client.recv(1000)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ConfigError, match=r"db_query\.password_env: the server asks for a password"):
            ask(f"postgresql://u@127.0.0.1:{listening.getsockname()[1]}/d", "SELECT 1")
        thread.join()


def test_a_server_that_is_not_there_or_refuses_is_no_fault_of_the_query(server: str):
    gone = make_url(server).set(port=1).render_as_string()
    with pytest.raises(UpstreamError, match=r"PostgreSQL at 127\.0\.0\.1/") as raised:
        ask(gone, "SELECT 1")
    assert raised.value.retryable
    with pytest.raises(UpstreamError, match="no_such_database"):
        ask(make_url(server).set(database="no_such_database").render_as_string(), "SELECT 1")


def test_queries_at_once_do_not_meet(server: str):
    spec = DbQuerySpec(url=server)
    tool = DbQuery(spec, open_database(spec))

    async def several() -> list[str]:
        return await asyncio.gather(*(tool.run({"sql": f"SELECT {n} AS n"}) for n in range(4)))

    assert [rows(one) for one in asyncio.run(several())] == [[{"n": n}] for n in range(4)]
    assert threading.active_count() < 50


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"url": "goods.db"}, "not a database URL"),
        ({"url": "sqlite://"}, "expected sqlite:///path"),
        ({"url": "mysql://u@h/d"}, "expected sqlite:///path"),
        ({"url": "postgresql://h/d"}, "expected sqlite:///path"),
        ({"url": "postgresql://u@h:99999/d"}, "expected sqlite:///path"),
        ({"url": "postgresql://u@h/d?sslmode=require"}, "found options after"),
        ({"url": "postgresql://u:hunter2@h/d"}, "found a password in it"),
        ({"url": "postgresql://u@h/d", "password_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY is not set"),
    ],
)
def test_a_url_that_cannot_be_is_named_without_its_password(spec: dict[str, str], words: str):
    with pytest.raises(ConfigError, match=words) as raised:
        open_database(DbQuerySpec.model_validate(spec))
    assert "hunter2" not in str(raised.value)


def test_two_columns_of_one_name_are_both_shown():
    assert row_line(["n", "n"], [1, b"xy"]) == '{"n": 1, "n": "<2 bytes>"}'
