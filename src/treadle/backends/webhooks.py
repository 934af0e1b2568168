"""Delivers webhooks: one signed request per try (Standard Webhooks, whose names and signature OpenAI uses)."""

from __future__ import annotations

import hashlib
import hmac
import time
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable

import aiohttp

from treadle.backends.outgoing import guarded_session
from treadle.errors import AddressRefused, ToolFault, UpstreamFault
from treadle.ports import AddressGuard

PREFIX = "whsec_"
_AGENT = "Treadle"


class WebhookEndpoint:
    """The one address that is told. Needs the running loop once it sends; close it."""

    def __init__(
        self,
        url: str,
        secret: str,
        guard: AddressGuard,
        *,
        timeout_seconds: float = 15.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """ValueError for a secret that begins like an encoded one and is not."""
        self._url = url
        self._key = key_of(secret)
        self._guard = guard
        self._seconds = timeout_seconds
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def send(self, event_id: str, body: bytes) -> None:
        """Tells it once. UpstreamFault unless it was answered with a status of success; redirects are not followed,
        since what is sent is meant for this address alone."""
        if self._session is None:
            self._session = guarded_session(self._guard, timeout_seconds=self._seconds)
        now = str(int(self._clock()))
        headers = {
            "content-type": "application/json",
            "user-agent": _AGENT,
            "webhook-id": event_id,
            "webhook-timestamp": now,
            "webhook-signature": signature(self._key, event_id, now, body),
        }
        try:
            async with self._session.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
                status = response.status
        except (aiohttp.ClientError, AddressRefused, ToolFault, TimeoutError) as error:
            raise UpstreamFault(f"The webhook could not be delivered ({type(error).__name__}).") from None
        if not 200 <= status < 300:
            raise UpstreamFault(f"The webhook was answered with status {status}.")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def key_of(secret: str) -> bytes:
    """The bytes to sign with: base64 behind `whsec_`, anything else as it is. ValueError if it is neither."""
    if not secret.startswith(PREFIX):
        return secret.encode()
    try:
        return b64decode(secret.removeprefix(PREFIX), validate=True)
    except NotBase64:
        raise ValueError(f"what stands behind {PREFIX} is no base64") from None


def signature(key: bytes, event_id: str, timestamp: str, body: bytes) -> str:
    signed = b".".join((event_id.encode(), timestamp.encode(), body))
    return f"v1,{b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"
