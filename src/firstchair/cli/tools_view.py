"""How tools are printed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.text import Text

from firstchair.chat.messages import Tool
from firstchair.cli.tables import print_json, table
from firstchair.tools.toolbox import signature


def print_tools(tools: Sequence[Tool], *, as_json: bool) -> None:
    """Name, arguments and description of each tool."""
    if as_json:
        print_json([msgspec.to_builtins(tool) for tool in tools])
        return
    shown = table("tool", "arguments", "what it does")
    for tool in tools:
        shown.add_row(Text(tool.name), Text(signature(tool)), Text((tool.description or "").split("\n")[0]))
    Console().print(shown)
