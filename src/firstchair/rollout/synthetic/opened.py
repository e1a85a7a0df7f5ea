"""A domain made ready: its tools as models see them, the image that episodes start from, the goal of each task."""

from __future__ import annotations

from firstchair.core.errors import DataError
from firstchair.rollout.synthetic.database import Database, Refused, in_reference_order
from firstchair.rollout.synthetic.domain import Domain, GoldenCall, SyntheticTask, system_text
from firstchair.rollout.synthetic.problems import table_problems, tool_problems
from firstchair.rollout.synthetic.state import State, start_keys, state_of
from firstchair.rollout.synthetic.tools import Answer, carry_out, tool_of


class OpenDomain:
    """Shared by all episodes of a domain, and changed by none.

    Raises ``DataError`` when tables or tools are not sound, or the rows do not fit the tables.
    """

    def __init__(self, domain: Domain):
        wrong = table_problems(domain.tables) or tool_problems(domain.tables, domain.tools)
        if wrong:
            raise DataError("; ".join(map(str, wrong[:3])), path=domain.name)
        self.domain, self.system = domain, system_text(domain)
        self.specs = {spec.name: spec for spec in domain.tools}
        self.tools = tuple(tool_of(spec) for spec in domain.tools)
        self._offered = {tool.name: tool for tool in self.tools}
        self._tables = in_reference_order(domain.tables)
        self._keys = start_keys(domain.tables, domain.rows)
        try:
            start = Database.build(self._tables, domain.rows)
        except Refused as error:
            raise DataError(f"rows: {error}", path=domain.name) from None
        self.image, self.start = start.image(), state_of(start, self._tables, self._keys)
        start.close()
        self._goals: dict[str, State] = {}

    def database(self, image: bytes | None = None) -> Database:
        """A database of one's own, at the start or as ``image`` says."""
        return Database(self.image if image is None else image, self._tables)

    def call(self, database: Database, name: str, arguments: object) -> Answer:
        """Carry out one call."""
        spec = self.specs.get(name)
        if spec is None:
            return Answer(f"no such tool: {name}", is_error=True)
        return carry_out(database, spec, self._offered[name], arguments, today=self.domain.today)

    def state(self, database: Database) -> State:
        """What ``database`` holds."""
        # Most episodes that are judged have changed nothing.
        if database.image() == self.image:
            return self.start
        return state_of(database, self._tables, self._keys)

    def goal(self, task: SyntheticTask) -> State:
        """What the database holds after the golden calls. Raises ``DataError`` when one of them fails."""
        if task.task_id not in self._goals:
            database = self.database()
            try:
                for call, answer in self.golden(database, task):
                    if answer.is_error:
                        raise DataError(
                            f"{task.task_id}: golden call {call.tool} {call.arguments}: {answer.text}",
                            path=self.domain.name,
                        )
                self._goals[task.task_id] = self.state(database)
            finally:
                database.close()
        return self._goals[task.task_id]

    def golden(self, database: Database, task: SyntheticTask) -> list[tuple[GoldenCall, Answer]]:
        """Carry out the golden calls of all turns; each with what it gave."""
        calls = [call for turn in task.turns for call in turn.calls]
        return [(call, self.call(database, call.tool, dict(call.arguments))) for call in calls]
