"""Asks our sandbox what Inspect asks of one, where Inspect is installed, and prints the answers as a JSON object."""

import asyncio
import json
import sys
from typing import Any

from inspect_ai.util._sandbox.registry import registry_find_sandboxenv

from firstchair.evals.benchmarks.own_sandbox import NAME

CONNECT = "import socket; socket.create_connection(('127.0.0.1', 9), 1)"


async def found(work: Any) -> Any:
    """The answer as plain values; of an exception its type."""
    try:
        result = await work
    except Exception as error:  # noqa: BLE001 - each is looked at by the test
        return type(error).__name__
    if hasattr(result, "returncode"):
        return [result.returncode, result.stdout, result.stderr]
    return list(result) if isinstance(result, bytes) else result


async def main() -> dict[str, Any]:
    kind = registry_find_sandboxenv(NAME)
    await kind.task_init("t", None)
    box = (await kind.sample_init("t", None, {}))["default"]
    folder = box.folder
    await box.write_file("a/b.txt", "kept\r\n")
    await box.write_file(f"{folder}/whole", bytes(range(256)))
    (folder / "secret").symlink_to("/etc/shadow")
    (folder / "away").symlink_to("/root/planted")
    answers = {
        "says": await found(box.exec(["sh", "-c", "cat a/b.txt; pwd"])),
        "input": await found(box.exec(["python3", "-"], input="print(6 * 7)")),
        "env": await found(box.exec(["sh", "-c", "echo $WORD; pwd"], cwd="a", env={"WORD": "x = y"})),
        "fails": await found(box.exec(["sh", "-c", "echo no >&2; exit 3"])),
        "missing": await found(box.exec(["no-such-program"])),
        "late": await found(box.exec(["sleep", "30"], timeout=1)),
        "root": await found(box.exec(["true"], user="root")),
        "network": await found(
            box.exec(["python3", "-c", "import socket; socket.create_connection(('1.1.1.1', 80))"])
        ),
        "home": await found(box.exec(["sh", "-c", "ls /root /home; touch /etc/x"])),
        "flood": await found(box.exec(["sh", "-c", "yes | head -c 20000000"])),
        "text": await found(box.read_file("a/b.txt")),
        "bytes": await found(box.read_file("whole", text=False)),
        "no text": await found(box.read_file("whole")),
        "no file": await found(box.read_file("nothing")),
        "folder": await found(box.read_file("a")),
        "shadow": await found(box.read_file("secret")),
        "over a folder": await found(box.write_file("a", "x")),
        "away": await found(box.write_file("away", "x")),
        "outside": await found(box.write_file("/tmp/x", "x")),
        "upwards": await found(box.write_file("../../x", "x")),
    }
    await kind.sample_cleanup("t", None, {"default": box}, False)
    return {**answers, "folder of": str(folder), "left": folder.exists()}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main())))
