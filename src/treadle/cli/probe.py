"""Asks model servers which models they offer, without the adapters: one GET, a short wait, a plain answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

import aiohttp
import msgspec

from treadle.models.vendors import GENERIC, find_vendor
from treadle.models.vendors import vendor as vendor_row
from treadle.settings import Provider

_MOST_BYTES = 8 * 1024 * 1024


class Listing(msgspec.Struct, frozen=True):
    """What a server answered: the ids of its models, or what it did wrong and under which HTTP status.

    `fault` continues a sentence that begins with the server's address.
    """

    models: tuple[str, ...] = ()
    fault: str = ""
    status: int | None = None


class _Model(msgspec.Struct):
    id: str


class _Envelope(msgspec.Struct):
    data: list[_Model] | None
    """Ollama writes null when it has no models."""


async def list_models(
    url: str, headers: dict[str, str], *, timeout_seconds: float, params: dict[str, str] | None = None
) -> Listing:
    """GET `<url>/models`. Never raises for what the server does."""
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{url}/models", headers=headers, params=params) as answer,
        ):
            body = await answer.content.read(_MOST_BYTES)
            while not answer.content.at_eof() and len(body) < _MOST_BYTES:
                body += await answer.content.read(_MOST_BYTES - len(body))
            return _read(answer.status, body)
    except TimeoutError:
        return Listing(fault=f"does not answer within {timeout_seconds:g} s")
    except aiohttp.ClientConnectorError as error:
        number = error.os_error.errno
        return Listing(fault=f"cannot be reached: {os.strerror(number) if number and number > 0 else error.os_error}")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Listing(fault=f"cannot be reached: {error}")


async def list_provider(provider: Provider, *, timeout_seconds: float = 10.0) -> Listing:
    """The models of a configured provider, asked with its key."""
    row = find_vendor(provider.vendor) or vendor_row(GENERIC)
    headers = dict(provider.headers)
    if provider.key and row.key_header == "api-key":
        headers["api-key"] = provider.key
    elif provider.key:
        headers["Authorization"] = f"Bearer {provider.key}"
    params = {"api-version": provider.api_version} if provider.api_version else None
    return await list_models(provider.url, headers, timeout_seconds=timeout_seconds, params=params)


async def list_providers(providers: Mapping[str, Provider], *, timeout_seconds: float = 10.0) -> dict[str, Listing]:
    """All of them at once."""
    asked = (list_provider(provider, timeout_seconds=timeout_seconds) for provider in providers.values())
    answers = await asyncio.gather(*asked)
    return dict(zip(providers, answers, strict=True))


def _read(status: int, body: bytes) -> Listing:
    if status in (401, 403):
        return Listing(fault=f"refuses the key (HTTP {status})", status=status)
    if status != 200:
        return Listing(fault=f"answers HTTP {status} to GET /models", status=status)
    try:
        answer = msgspec.json.decode(body, type=_Envelope | list[_Model])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Listing(fault="answers, but not with a list of models", status=status)
    models = answer.data or [] if isinstance(answer, _Envelope) else answer
    return Listing(tuple(model.id for model in models), status=status)
