"""TensorZero's gateway as its wheel carries it, on a port; run with the interpreter that has ``tensorzero``.

    .venv-tensorzero/bin/python bench/gateway/tensorzero_gateway.py CONFIG

Prints one JSON line with its base URL and serves until its input ends.
"""

from __future__ import annotations

import json
import sys

import tensorzero
from openai import OpenAI


def main() -> None:
    client = OpenAI(api_key="unused")
    tensorzero.patch_openai_client(client, config_file=sys.argv[1], clickhouse_url=None, async_setup=False)
    print(json.dumps({"base_url": str(client.base_url)}), flush=True)
    while sys.stdin.readline():
        pass


if __name__ == "__main__":
    main()
