"""A connection to PostgreSQL that takes no more than it was told to, whatever the statement gives.

The driver itself reads every row of a result, and a row may have a gigabyte. So the server is asked for a number of
rows (the extended protocol's limit of a portal), and the connection is given up when the answer grows too large.
"""

from __future__ import annotations

import struct
from typing import Any

from pg8000.native import Connection

from firstchair.core.errors import ConfigError
from firstchair.tools.base import Failure, ToolFailed

MAX_ANSWER_BYTES = 16_000_000
"""Of all rows and notices together."""
_HEAD = struct.Struct("!cI")
_EXECUTE, _READY = b"E", b"Z"
_AUTHENTICATED = 0


class BoundedConnection(Connection):  # type: ignore[misc]
    """pg8000's connection for one statement. ``max_rows``: of a statement sent by ``execute_unnamed``.

    Raises ``ToolFailed`` for an answer that is too large and for COPY from or to here, ``ConfigError`` when the
    server asks for a password and there is none.
    """

    def __init__(self, *, max_rows: int, **login: Any):
        self._max_rows, self._left = max_rows, MAX_ANSWER_BYTES
        super().__init__(**login)

    def send_EXECUTE(self) -> None:
        """Ask for the first rows of the unnamed portal."""
        self._send_message(_EXECUTE, b"\0" + struct.pack("!i", self._max_rows))

    def handle_messages(self, context: Any) -> None:
        """Read to the end of an answer."""
        code = b""
        while code != _READY:
            code, size = _HEAD.unpack(self._exactly(_HEAD.size))
            self._left -= size
            if self._left < 0:
                raise ToolFailed(
                    Failure.TOO_LARGE,
                    f"the answer has more than {MAX_ANSWER_BYTES // 1_000_000} MB; nothing was changed; ask for less",
                )
            self.message_types[code](self._exactly(size - 4), context)
        if context.error is not None:
            raise context.error

    def handle_AUTHENTICATION_REQUEST(self, data: bytes, context: Any) -> None:
        """Log in."""
        if self.password is None and int.from_bytes(data[:4], "big") != _AUTHENTICATED:
            raise ConfigError(
                "db_query.password_env: the server asks for a password; name the variable that holds it"
            )
        super().handle_AUTHENTICATION_REQUEST(data, context)

    def handle_COPY_IN_RESPONSE(self, data: bytes, context: Any) -> None:
        """No file of ours is copied."""
        raise ToolFailed(Failure.REFUSED, "COPY from here is not possible; use INSERT")

    def handle_COPY_OUT_RESPONSE(self, data: bytes, context: Any) -> None:
        """No file of ours is written."""
        raise ToolFailed(Failure.REFUSED, "COPY to here is not possible; use SELECT")

    def _exactly(self, count: int) -> bytes:
        block: bytes = self._sock.read(count)
        if len(block) < count:
            raise ConnectionResetError("the server closed the connection")
        return block
