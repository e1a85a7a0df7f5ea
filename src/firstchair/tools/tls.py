"""The certificates that tools trust, read once: it takes a while, and each episode opens its tools anew."""

from __future__ import annotations

import ssl
from functools import cache

import httpx


@cache
def tls_context() -> ssl.SSLContext:
    """The system's and certifi's authorities, as httpx takes them, ``SSL_CERT_FILE`` included. Do not change it."""
    return httpx.create_ssl_context()
