"""The chat loop that plays a task of ``verifiers`` in this process; imported only where that package is installed."""

from __future__ import annotations

from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire

from firstchair.chat.messages import ToolCall
from firstchair.chat.openai_wire import messages_to_openai, tools_to_openai
from firstchair.rollout.mcp_servers import HttpServer
from firstchair.rollout.mcp_tools import McpToolset


class ChatHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    """Answers and tool calls until an answer without a call.

    Its calls go through the endpoint that ``verifiers`` listens on, which keeps the trace that rewards read, applies
    stops and rewrites, and passes them on to the policy.
    """

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: dict[str, str], data: Any
    ) -> Any:
        """Play to the end. Nothing is started: ``runtime`` only serves the task's own hooks."""
        servers = {name: HttpServer(url=url) for name, url in mcp_urls.items()}
        async with (
            McpToolset(servers, timeout_s=self.config.tool_timeout) as toolset,
            httpx.AsyncClient(headers={"authorization": f"Bearer {secret}"}, timeout=None) as client,
        ):
            rows = self._prompt(data)
            body: dict[str, Any] = {"model": ctx.model}
            if toolset.tools:
                body["tools"] = tools_to_openai(toolset.tools)
            while True:
                answer = await client.post(f"{endpoint}/chat/completions", json={**body, "messages": rows})
                if answer.status_code != 200:
                    # A stop of the task refuses the call, which ``verifiers`` knows; it takes the rest for failures.
                    return vf.ProgramResult(exit_code=1, stdout="", stderr=answer.text)
                message = answer.json()["choices"][0]["message"]
                rows.append({key: value for key, value in message.items() if value is not None})
                calls = message.get("tool_calls") or []
                if not calls:
                    return vf.ProgramResult(exit_code=0, stdout="", stderr="")
                for row in calls:
                    wanted = ToolCall(
                        id=row["id"], name=row["function"]["name"], arguments=row["function"]["arguments"]
                    )
                    rows += messages_to_openai([await toolset.call(wanted)])

    def _prompt(self, data: Any) -> list[dict[str, Any]]:
        system, prompt = self.resolve_prompt(data)
        rows: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            return [*rows, {"role": "user", "content": prompt}]
        return [*rows, *map(message_to_wire, prompt or [])]
