"""Who is asking: a key in a header (API), or a cookie that a key was given for (console).

    API      x-api-key or authorization: Bearer; no cookie counts, so no page of another site can use one
    console  the admin key once → HttpOnly, SameSite=Strict cookie; a change wants the login's token too
    both     a request that says it comes from another origin may change nothing

Without keys (``auth.require_keys: false``, loopback only) everybody on this machine may do everything; then only
names of loopback are answered, so that no other name can be pointed here by a page in a browser.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from firstchair.gateway.config import is_loopback
from firstchair.gateway.console.refusal import Refusal
from firstchair.gateway.control.keys import SCOPES
from firstchair.gateway.control.snapshot import EMPTY, Key, Scope
from firstchair.gateway.control.store import ControlStore

COOKIE = "firstchair_console"
LOGIN_S = 12 * 3600
"""How long a login lasts, whatever is done with it."""
MAX_LOGINS = 1000
"""Kept at a time; the oldest make room."""
Headers = Mapping[str, str]


class Caller(NamedTuple):
    """Who asks, and what for they may."""

    who: str
    """For the audit log."""
    scopes: frozenset[Scope]
    token: str = ""
    """Of the login: what a form must bring along."""

    def may(self, scope: Scope) -> bool:
        """``admin`` may all that is done here, ``traces`` read sessions and ledger."""
        return scope in self.scopes or "admin" in self.scopes


class Login(msgspec.Struct, frozen=True):
    """One open login."""

    key_id: str
    token: str
    ends: float


class Access:
    """Keys and logins of one admin process. Safe to share between threads."""

    def __init__(self, control: ControlStore, *, require_keys: bool, clock: Callable[[], float] = time.monotonic):
        self._control, self.require_keys, self._clock = control, require_keys, clock
        self._snapshot = EMPTY
        self._logins: dict[bytes, Login] = {}
        self._lock = threading.Lock()
        self._open = Caller("local console", frozenset(SCOPES), secrets.token_urlsafe(32))

    # Keys

    def _fresh(self) -> None:
        if self._control.revision() != self._snapshot.revision or self._snapshot is EMPTY:
            self._snapshot = self._control.snapshot()

    def api_caller(self, headers: Headers) -> Caller:
        """Whose key the request brings. Raises ``Refusal`` (401)."""
        if not self.require_keys:
            return self._open
        given = headers.get("authorization")
        scheme, _, value = (given or "").partition(" ")
        bearer = value.strip() if scheme.lower() == "bearer" else ""
        secret = headers.get("x-api-key", bearer)
        if given is not None and bearer != secret:
            raise Refusal(401, "x-api-key and authorization say different things; send one of them")
        if not secret:
            raise Refusal(401, "no key; send one as x-api-key or as authorization: Bearer")
        self._fresh()
        key = self._snapshot.key(secret)
        if key is None:
            raise Refusal(401, "this key is not known here, or was revoked")
        return _caller(key)

    # Logins

    def log_in(self, secret: str) -> str:
        """The cookie for an admin key. Raises ``Refusal``."""
        self._fresh()
        key = self._snapshot.key(secret.strip())
        if key is None:
            raise Refusal(401, "This key is not known here, or was revoked.")
        if "admin" not in key.scopes:
            raise Refusal(403, "This key may not administer the gateway; use one with the scope admin.")
        cookie = secrets.token_urlsafe(32)
        login = Login(key.key_id, secrets.token_urlsafe(32), self._clock() + LOGIN_S)
        with self._lock:
            self._drop_old()
            self._logins[_digest(cookie)] = login
        return cookie

    def _drop_old(self) -> None:
        now = self._clock()
        for digest in [digest for digest, login in self._logins.items() if login.ends <= now]:
            del self._logins[digest]
        while len(self._logins) >= MAX_LOGINS:
            del self._logins[next(iter(self._logins))]

    def console_caller(self, cookie: str) -> Caller | None:
        """Who is logged in; ``None``: nobody, or the key was revoked since."""
        if not self.require_keys:
            return self._open
        with self._lock:
            login = self._logins.get(_digest(cookie))
        if login is None or login.ends <= self._clock():
            return None
        self._fresh()
        key = self._snapshot.key_by_id(login.key_id)
        return _caller(key, login.token) if key is not None and "admin" in key.scopes else None

    def log_out(self, cookie: str) -> None:
        with self._lock:
            self._logins.pop(_digest(cookie), None)

    def check_host(self, headers: Headers) -> None:
        """Raises ``Refusal`` when an open console is called by a name that is not this machine's own."""
        host = _hostname(headers.get("host", ""))
        if not self.require_keys and not is_loopback(host):
            raise Refusal(403, "without keys only localhost is answered; open it by that name, or turn keys on")


def _caller(key: Key, token: str = "") -> Caller:
    return Caller(f"key {key.name}", key.scopes, token)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _hostname(netloc: str) -> str:
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return ""


def check_origin(headers: Headers) -> None:
    """Raises ``Refusal`` for a request that a page of another origin sends.

    Host and port are compared, not the scheme: behind a proxy that ends TLS the two differ.
    """
    origin = headers.get("origin")
    if origin is not None:
        if urlsplit(origin).netloc.lower() != headers.get("host", "").lower() or origin == "null":
            raise Refusal(403, "this request comes from a page of another site; nothing was changed")
    elif headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Refusal(403, "this request comes from a page of another site; nothing was changed")


def check_token(caller: Caller, given: str) -> None:
    """Raises ``Refusal`` unless the form is one that this login was shown."""
    if not hmac.compare_digest(caller.token.encode(), given.encode("utf-8", "surrogatepass")):
        raise Refusal(403, "this form is of another login; load the page again, nothing was changed")
