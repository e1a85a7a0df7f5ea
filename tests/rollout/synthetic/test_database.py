"""Statements that nobody trusts: what they may do, and that nothing else ever happens."""

import pytest
from tests.rollout.synthetic.kennel import kennel

from firstchair.rollout.synthetic.database import Refused

KENNEL = kennel()


@pytest.fixture
def database():
    opened = KENNEL.database()
    yield opened
    opened.close()


def rows(database, sql, **values):
    return database.select(sql, values, max_rows=1000)[1]


ATTACKS = [
    "ATTACH '/tmp/x.db' AS x",
    "PRAGMA table_info(dogs)",
    "PRAGMA writable_schema = 1",
    "SELECT * FROM pragma_table_info('dogs')",
    "SELECT * FROM sqlite_master",
    "SELECT load_extension('/tmp/x.so')",
    "SELECT readfile('/etc/passwd')",
    "SELECT writefile('/tmp/x', 'x')",
    "SELECT randomblob(8)",
    "SELECT random()",
    "SELECT zeroblob(1000000000)",
    "SELECT printf('%1000000000d', 1)",
    "SELECT CURRENT_TIMESTAMP",
    "SELECT date('now')",
    "SELECT value FROM json_each('[1]')",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
    "CREATE TABLE x (y)",
    "CREATE TEMP TRIGGER t AFTER INSERT ON dogs BEGIN DELETE FROM dogs; END",
    "DROP TABLE dogs",
    "ALTER TABLE dogs RENAME TO cats",
    "VACUUM INTO '/tmp/x.db'",
    "BEGIN",
    "COMMIT",
    "SAVEPOINT s",
    "SELECT 1; DELETE FROM dogs",
    "SELECT * FROM dogs WHERE name = ?",
    "SELECT * FROM dogs WHERE name = :nobody",
]


@pytest.mark.parametrize("sql", ATTACKS)
def test_a_statement_that_reaches_beyond_the_tables_is_refused_in_both_modes(database, sql):
    before = database.image()
    for attempt in (lambda: rows(database, sql), lambda: database.write(sql, {}), lambda: database.prepare(sql, [])):
        with pytest.raises(Refused):
            attempt()
    assert database.image() == before


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM dogs",
        "UPDATE dogs SET name = 'x'",
        "WITH one AS (SELECT 1) DELETE FROM dogs",
        "WITH one AS (SELECT 1) INSERT INTO dogs VALUES (99, 'x', 'small', 1.0) RETURNING id",
    ],
)
def test_what_only_reads_cannot_write(database, sql):
    before = database.image()
    with pytest.raises(Refused, match="not authorized" if sql.startswith("WITH") else "expected a SELECT"):
        rows(database, sql)
    assert database.image() == before


def test_a_statement_that_runs_long_or_grows_is_stopped(database):
    tables = ", ".join(f"bills AS b{n}" for n in range(6))
    with pytest.raises(Refused, match="takes too long"):
        rows(database, f"SELECT count(*) FROM {tables}")
    grown = "'x'"
    for _ in range(8):
        grown = f"replace({grown}, 'x', 'xxxxxxxxxx')"
    with pytest.raises(Refused, match="too big"):
        rows(database, f"SELECT {grown}")
    assert rows(database, "SELECT count(*) FROM bills") == [(20,)]


def test_the_database_cannot_outgrow_its_pages(database):
    grown = "replace(:note, 'x', 'yyyyyyyyy')"
    grow = f"INSERT INTO stays (dog_id, first, note) SELECT 1, 'x', {grown} FROM bills AS a, bills AS b"
    with pytest.raises(Refused, match="full"):
        for _ in range(20):
            database.write(grow, {"note": "x" * 1000})
    assert len(database.image()) <= 4096 * 4096


def test_what_fails_halfway_leaves_nothing(database):
    def both():
        with database.all_or_nothing():
            assert database.write("UPDATE dogs SET name = 'x' WHERE id = 1", {}) == 1
            database.write("INSERT INTO stays (dog_id, first) VALUES (99, 'x')", {})

    before = database.image()
    with pytest.raises(Refused, match="FOREIGN KEY"):
        both()
    assert rows(database, "SELECT name FROM dogs WHERE id = 1") == [("Rex",)]
    with database.all_or_nothing():
        database.write("UPDATE dogs SET name = 'Rexy' WHERE id = 1", {})
    assert database.image() != before


def test_an_image_is_a_whole_copy_of_its_own(database):
    image = database.image()
    database.write("DELETE FROM bills", {})
    other = KENNEL.database(image)
    assert rows(other, "SELECT count(*) FROM bills") == [(20,)]
    assert rows(database, "SELECT count(*) FROM bills") == [(0,)]
    with pytest.raises(Refused):
        rows(other, "PRAGMA user_version")
    other.close()


def test_dates_know_only_what_they_are_given(database):
    good = "SELECT add_days('2026-02-27', 3), days_between('2026-02-27', '2026-03-02')"
    assert rows(database, good) == [("2026-03-02", 3)]
    assert rows(database, "SELECT add_days('x', 1), days_between(1, 'x')") == [(None, None)]


def test_values_that_do_not_fit_the_columns_are_refused(database):
    for values in ({"size": "giant"}, {"size": 3}, {"size": None}, {"id": 2**70}):
        row = {"id": 50, "name": "x", "size": "small", **values}
        with pytest.raises(Refused):
            database.write("INSERT INTO dogs VALUES (:id, :name, :size, NULL)", row)
