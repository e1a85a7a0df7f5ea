"""Requests that schemathesis makes up from a document, right and wrong ones: every answer is one of the document."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.gateway.console.conftest import admin
from tests.gateway.wire_document import MODELS, document

from firstchair.gateway.console.api import OPERATIONS
from firstchair.gateway.console.openapi import document as admin_document
from firstchair.testing.gateway_server import provider, running_gateway
from firstchair.testing.scripted_upstream import Reply, Script, scripted_upstream

FEW = settings(
    max_examples=15, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)
"""Beside the systematic ones, made up by chance for one operation; always the same ones, so that no change of ours is
refused by luck."""
MANY = settings(FEW, max_examples=500, derandomize=False)
CONFORMANCE = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
"""What must hold behind every provider. Whether a right request is accepted and a wrong one refused is the provider's
to say where the client speaks its wire."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with ExitStack() as stack:
        upstream = stack.enter_context(scripted_upstream(Script((Reply(text="Hello."),), record=False)))
        kinds = ("anthropic", "openai", "openai-compatible")
        providers = {kind: provider(upstream.base_url, kind) for kind in kinds}
        slots = [
            {"slot": name, "primary": {"provider": kind, "model": "m"}}
            for name, kind in zip(MODELS, kinds, strict=True)
        ]
        folder = tmp_path_factory.mktemp("gateway")
        yield stack.enter_context(running_gateway(folder, providers, slots, logs={"calls": False}))


class Later:
    """An ASGI application that stands for one which is made when the tests run."""

    def __init__(self):
        self.app = None

    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)


CALL_PORT = schemathesis.openapi.from_dict(document())
ADMIN_PORT = schemathesis.openapi.from_dict(admin_document(OPERATIONS))
ADMIN_PORT.app = Later()
ADMIN_PORT.config.generation.with_security_parameters = False  # else most of what is made up is a wrong key


@pytest.fixture(scope="module")
def console(tmp_path_factory):
    with admin(tmp_path_factory.mktemp("console")) as made:
        ADMIN_PORT.app.app = made.client.app
        yield made


def check_call(case, gateway):
    case.call_and_validate(base_url=gateway.url, checks=CONFORMANCE, headers={"x-api-key": gateway.key})
    assert gateway.worker.counters["faults"] == 0


def check_admin(case, console):
    case.call_and_validate(headers={"x-api-key": console.secrets["admin"], "host": "localhost:8401"})


@CALL_PORT.parametrize()
@FEW
def test_the_call_port_answers_what_its_document_says(case, gateway):
    check_call(case, gateway)


@ADMIN_PORT.parametrize()
@FEW
def test_the_admin_port_answers_what_its_document_says(case, console):
    check_admin(case, console)


@pytest.mark.slow
@CALL_PORT.parametrize()
@MANY
def test_the_call_port_answers_what_its_document_says_to_many(case, gateway):
    check_call(case, gateway)


@pytest.mark.slow
@ADMIN_PORT.parametrize()
@MANY
def test_the_admin_port_answers_what_its_document_says_to_many(case, console):
    check_admin(case, console)
