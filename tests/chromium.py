"""A headless Chromium that tests drive over its DevTools pipe: no driver, no web socket, no port."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.services import missing

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
)

WAIT_S = 60.0
"""Longest wait for the browser."""


class Tab:
    """One page. Commands and events are those of the DevTools protocol."""

    def __init__(self, writes: int, reads: int):
        self._writes, self._reads = writes, reads
        self._buffer, self._number, self._session = b"", 0, ""
        self.said: list[str] = []
        """What the browser's console said: errors of scripts, refusals of the policy, failed loads."""
        self.loads = 0
        """Pages that were loaded so far."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a command; raises ``RuntimeError`` where Chromium refuses it."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._reads], [], [], WAIT_S)[0]:
                raise RuntimeError(f"Chromium said nothing for {WAIT_S:g} s")
            data = os.read(self._reads, 1 << 20)
            if not data:
                raise RuntimeError("Chromium ended")
            self._buffer += data
        first, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(first)
        if message.get("method") == "Log.entryAdded":
            entry = message["params"]["entry"]
            if entry["level"] in ("warning", "error"):
                self.said.append(entry["text"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.said.append(str(message["params"]["exceptionDetails"]))
        elif message.get("method") == "Page.loadEventFired":
            self.loads += 1
        return message

    def show(self, *, width: int, dark: bool, height: int = 900) -> None:
        """How wide the window is, in CSS pixels, and whether the system's colours are dark."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        """Go there and wait until all is loaded."""
        before = self.loads
        self.send("Page.navigate", url=url)
        self.wait_loaded(before)

    def wait_loaded(self, before: int) -> None:
        """Until another page is there than the ``before`` ones; it may come ahead of an earlier command's answer."""
        while self.loads <= before:
            self._read()

    def run(self, script: str) -> Any:
        """The value of an expression, of a promise once it is kept. The page's policy does not hold for it."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Until an expression is true; what a page does after its load event is done a frame or more later."""
        deadline = time.monotonic() + WAIT_S
        while not self.run(condition):
            if time.monotonic() > deadline:
                raise RuntimeError(f"not so within {WAIT_S:g} s: {condition}")
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """``Tab`` and the like, as from a keyboard."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27}
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **text
            )


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[Tab]:
    """A browser with one tab; its profile is under ``folder``."""
    if not CHROMIUM:
        missing("Chromium", "pages are opened in a real browser; install it (Debian: apt-get install chromium)")
    inward, outward = os.pipe(), os.pipe()
    # The browser reads from 3 and writes to 4; what is moved there must not lie there already.
    reads, writes = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (inward[0], outward[1]))
    command = [CHROMIUM, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}", "about:blank"]
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{reads} 4>&{writes}', "bash", *command],
        pass_fds=(reads, writes),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for fd in (inward[0], outward[1], reads, writes):
        os.close(fd)
    try:
        yield Tab(inward[1], outward[0])
    finally:
        process.terminate()
        process.wait(60)
        os.close(inward[1])
        os.close(outward[0])
