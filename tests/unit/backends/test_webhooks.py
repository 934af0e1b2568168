"""Webhooks as they leave: signed so that the official client believes them, and to one address only."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterator

import pytest
from openai import InvalidWebhookSignatureError, OpenAI

from treadle.access.netguard import OutgoingGuard
from treadle.backends.webhooks import WebhookEndpoint
from treadle.errors import UpstreamFault
from treadle.testing.web import FakeWeb
from treadle.wire.base import encode
from treadle.wire.webhooks import WebhookEvent, WebhookSubject

SECRET = f"whsec_{b64encode(b'0123456789abcdef0123456789abcdef').decode()}"
EVENT = WebhookEvent(id="evt_1", created_at=1, type="response.completed", data=WebhookSubject("resp_1"))


@pytest.fixture
def web() -> Iterator[FakeWeb]:
    with FakeWeb() as found:
        yield found


@pytest.mark.parametrize("secret", [SECRET, "a plain secret"])
async def test_the_official_client_believes_what_is_sent(web: FakeWeb, secret: str) -> None:
    endpoint = WebhookEndpoint(web.page("/hook", "ok"), secret, OutgoingGuard(["127.0.0.1"]))
    try:
        await endpoint.send("evt_1", encode(EVENT))
    finally:
        await endpoint.close()
    (sent,) = web.requests
    client = OpenAI(api_key="none", base_url="http://127.0.0.1:1/v1", webhook_secret=secret)
    event = client.webhooks.unwrap(sent.body, sent.headers)
    assert (event.id, event.type, event.data.id) == ("evt_1", "response.completed", "resp_1")
    with pytest.raises(InvalidWebhookSignatureError):
        client.webhooks.unwrap(sent.body + b" ", sent.headers)
    assert abs(int(sent.headers["webhook-timestamp"]) - time.time()) < 60


@pytest.mark.parametrize(("status", "headers"), [(500, {}), (302, {"location": "/elsewhere"}), (404, {})])
async def test_only_success_is_delivery(web: FakeWeb, status: int, headers: dict[str, str]) -> None:
    web.page("/elsewhere", "ok")
    endpoint = WebhookEndpoint(
        web.page("/hook", "", status=status, headers=headers), SECRET, OutgoingGuard(["127.0.0.1"])
    )
    try:
        with pytest.raises(UpstreamFault, match=str(status)):
            await endpoint.send("evt_1", b"{}")
    finally:
        await endpoint.close()
    assert [request.path for request in web.requests] == ["/hook"]


async def test_an_address_that_is_not_admitted_is_not_asked(web: FakeWeb) -> None:
    endpoint = WebhookEndpoint(web.page("/hook", "ok"), SECRET, OutgoingGuard([]))
    try:
        with pytest.raises(UpstreamFault, match="delivered"):
            await endpoint.send("evt_1", b"{}")
    finally:
        await endpoint.close()
    assert web.requests == []


async def test_nobody_there_is_a_fault_that_can_be_tried_again() -> None:
    endpoint = WebhookEndpoint("http://127.0.0.1:1/", SECRET, OutgoingGuard(["127.0.0.1"]))
    try:
        with pytest.raises(UpstreamFault, match="delivered"):
            await endpoint.send("evt_1", b"{}")
    finally:
        await endpoint.close()


def test_a_secret_that_only_looks_encoded_is_refused() -> None:
    with pytest.raises(ValueError, match="base64"):
        WebhookEndpoint("http://127.0.0.1:1/", "whsec_!", OutgoingGuard([]))
