"""The exception tree. Every message names the place, what was found, what was expected, and the fix.

    FirstchairError                exit code
    ├── ConfigError                2   a recipe, flag or command line the user can edit
    ├── DataError                  2   an input file or record (``path:line: field: ...``)
    │   └── IntegrityError         2   a checksum, template hash or resume state that does not match
    ├── BadRequest                 2   a caller's request that cannot be served (HTTP 4xx, ``param``)
    ├── UpstreamError              1   a server or engine failed (``status``, ``retryable``, ``retry_after_s``)
    ├── GradingError               1   a grader failed; recorded as ungraded, never as a score
    └── RunFailed                  1   the run itself failed (disk full, out of memory, interrupted state)

``assert`` marks our own bugs. Only the process's main function and the rollout boundary catch ``Exception``.
"""

from __future__ import annotations


class FirstchairError(Exception):
    """Base of every error that Firstchair raises on purpose; ``exit_code`` is what the CLI returns."""

    exit_code = 1


class ConfigError(FirstchairError):
    """A recipe, flag or command line is wrong; the user edits it. Shown without a traceback."""

    exit_code = 2


class DataError(FirstchairError):
    """An input record is wrong. ``str()`` reads ``path:line: field: found …; expected …; fix``."""

    exit_code = 2

    def __init__(self, message: str, *, path: str | None = None, line: int | None = None, field: str | None = None):
        self.reason, self.path, self.line, self.field = message, path, line, field
        where = f"{path}:{line}" if path and line is not None else path
        super().__init__(": ".join(part for part in (where, field, message) if part))

    def at(self, path: str, line: int | None = None) -> DataError:
        """The same error with its file and line filled in."""
        return type(self)(self.reason, path=path, line=line, field=self.field)


class IntegrityError(DataError):
    """Bytes on disk are not the bytes that were frozen or saved."""


class BadRequest(FirstchairError):
    """A request that cannot be served as it is; ``param`` names the field."""

    exit_code = 2

    def __init__(self, message: str, *, param: str | None = None):
        self.param = param
        super().__init__(f"{param}: {message}" if param else message)


class UpstreamError(FirstchairError):
    """A server, engine or database failed. Never a score."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retryable: bool = False,
        retry_after_s: float | None = None,
    ):
        self.status, self.retryable, self.retry_after_s = status, retryable, retry_after_s
        super().__init__(message)


class GradingError(FirstchairError):
    """A grader could not grade. The sample is marked ungraded, left out and counted."""


class RunFailed(FirstchairError):
    """The run could not be carried through; what was written before is consistent."""
