"""What the admin port answers when it does not do what was asked."""

from __future__ import annotations

from typing import Any

WORDS = {
    400: "bad_request",
    401: "authentication",
    403: "permission",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    413: "too_large",
    415: "media_type",
    500: "internal",
    503: "unavailable",
}
"""``error.type`` by status."""


class Refusal(Exception):
    """The request gets no further. ``param`` names the field, where there is one."""

    def __init__(self, status: int, message: str, *, param: str | None = None):
        self.status, self.message, self.param = status, message, param
        super().__init__(message)


def error_body(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """The one shape of every error."""
    kind = WORDS.get(status, "bad_request" if status < 500 else "internal")
    return {"error": {"type": kind, "message": message, "param": param}}
