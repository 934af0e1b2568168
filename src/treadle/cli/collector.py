"""Asks a collector of traces whether it takes any."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp

_SECONDS = 5.0


async def refusal(endpoint: str, headers: Mapping[str, str]) -> str:
    """What is wrong with the collector at that base address, continuing a sentence that begins with it; empty if it
    took an export of nothing."""
    sent = {**headers, "content-type": "application/x-protobuf"}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SECONDS)) as session,
            session.post(f"{endpoint.rstrip('/')}/v1/traces", data=b"", headers=sent) as answer,
        ):
            return "" if 200 <= answer.status < 300 else f"takes no traces (HTTP {answer.status})"
    except TimeoutError:
        return f"does not answer within {_SECONDS:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return f"cannot be reached: {error}"


def ask(endpoint: str, headers: Mapping[str, str]) -> str:
    """`refusal` for callers without an event loop."""
    return asyncio.run(refusal(endpoint, headers))
