"""Tasks of the ``verifiers`` package with a tool server; a module of its own, because that server imports it."""

from __future__ import annotations

from collections.abc import Iterator

import verifiers.v1 as vf


class SumData(vf.TaskData):
    """Two numbers."""

    a: int
    b: int
    fault: bool = False


class SumTools(vf.Toolset[vf.ToolsetConfig, vf.State]):
    """A tool server of the task, which verifiers runs."""

    @vf.tool
    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b


class SumTask(vf.Task[SumData]):
    """Answer with the sum; half a point for having used the tool."""

    @property
    def key(self) -> str:
        return f"sum-{self.data.a}-{self.data.b}"

    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [SumTools(vf.ToolsetConfig())]

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        if self.data.fault:
            raise ValueError("the grader is broken")
        return float(trace.last_reply == str(self.data.a + self.data.b))

    @vf.reward(weight=0.5)
    async def used_tool(self, trace: vf.Trace) -> float:
        return float(any(message.tool_calls for message in trace.assistant_messages))


class Sums(vf.Taskset[SumTask]):
    """Four tasks; the last one cannot be graded."""

    def load(self) -> Iterator[SumTask]:
        for number in range(4):
            data = SumData(prompt=f"What is {number} + 3?", system_prompt="Add.", a=number, b=3, fault=number == 3)
            yield SumTask(data, self.config.task)


if __name__ == "__main__":
    SumTools.run()
