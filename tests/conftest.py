"""A real PostgreSQL for the tests that want one.

It is the one at DATABASE_URL, or one that is started here for the test session: ``initdb`` and ``pg_ctl``
from PATH or /usr/lib/postgresql, on a free port of 127.0.0.1, as another user when the tests run as root (it
refuses root). When there is none the tests skip with the reason, and fail where all services must be there.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from tests.services import missing


def _binaries() -> Path:
    # Debian's wrappers on PATH may lack pg_ctl, so the folder must have both.
    folders = [Path(name).parent for name in (shutil.which("pg_ctl"), shutil.which("initdb")) if name]
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        if (folder / "initdb").is_file() and (folder / "pg_ctl").is_file():
            return folder
    missing("PostgreSQL", "install it (Debian: apt-get install postgresql) or set DATABASE_URL")


def _account() -> pwd.struct_passwd | None:
    """The user that the server runs as; ``None`` is the present one. Root needs another, and makes it if need be."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        subprocess.run(["useradd", "--system", "--no-create-home", "postgres"], check=True)
        return pwd.getpwnam("postgres")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of a PostgreSQL server, up for the whole test session."""
    given = os.environ.get("DATABASE_URL")
    if given:
        yield given
        return
    folder, account = _binaries(), _account()
    identity = {} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    home = Path(tempfile.mkdtemp(prefix="firstchair-pg-"))
    if account is not None:
        os.chown(home, account.pw_uid, account.pw_gid)
    data, port = home / "data", _free_port()

    def run(*command: str) -> None:
        done = subprocess.run(command, cwd=home, capture_output=True, text=True, **identity)  # type: ignore[call-overload]
        if done.returncode:
            log = home / "log"
            pytest.fail(f"{command[0]}: {done.stdout}{done.stderr}{log.read_text() if log.exists() else ''}")

    run(str(folder / "initdb"), "-D", str(data), "-U", "tester", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={home} -c fsync=off"
    run(str(folder / "pg_ctl"), "-D", str(data), "-l", str(home / "log"), "-w", "-o", options, "start")
    try:
        yield f"postgresql+pg8000://tester@127.0.0.1:{port}/postgres"
    finally:
        run(str(folder / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop")
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_database(postgres_url: str) -> Iterator[str]:
    """URL of a database of our own on that server."""
    server = make_url(postgres_url).set(drivername="postgresql+pg8000")
    name = f"firstchair_test_{os.getpid()}"
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    try:
        yield server.set(database=name).render_as_string(hide_password=False)
    finally:
        with admin.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        admin.dispose()
