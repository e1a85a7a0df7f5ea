"""The console in a real browser: pages are quiet under their policy, new calls come in, stored markup stays text."""

from __future__ import annotations

import subprocess

import msgspec
from tests.chromium import CHROMIUM
from tests.gateway.console.conftest import admin
from tests.gateway.console.live import serving
from tests.gateway.console.traffic import records
from tests.services import missing

from firstchair.gateway.control.ledger import insert_records

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"),
)


def opened(url, folder, *more):
    """The DOM of a page, and what the browser's console said."""
    if not CHROMIUM:
        missing("Chromium", "the console is opened in a real browser; install it (Debian: apt-get install chromium)")
    done = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", *more, url],
        check=True,
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done.stdout, [line for line in done.stderr.split("\n") if "CONSOLE" in line]


def test_live_calls_come_in_and_a_hostile_session_stays_text(tmp_path):
    late = msgspec.structs.replace(records(1, "")[0], call_id="late", provider_model="late-model", slot="notes")

    with admin(tmp_path, require_keys=False) as made:

        async def app(scope, receive, send):
            await made.client.app(scope, receive, send)
            if scope["path"] == "/calls":
                with made.store.transaction() as connection:
                    insert_records(connection, [late])

        with serving(app) as url:
            dom, console = opened(f"{url}/calls", tmp_path, "--virtual-time-budget=5000", "--dump-dom")
            assert console == []
            assert "late-model" in dom
            assert ">1 new call<" in dom
            dom, console = opened(f"{url}/sessions/shop/2", tmp_path, "--virtual-time-budget=2000", "--dump-dom")
            assert console == []
            assert "<title>pwned" not in dom
            assert "<img" not in dom
            assert "<script" not in dom
