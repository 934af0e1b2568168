"""Real clients against the real server: the fixtures of the behaviour tests, and the official client in async form."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.behaviour.conftest import api, client, model, server
from treadle.testing.server import RunningServer

__all__ = ["api", "client", "model", "server"]


@pytest.fixture
async def async_client(server: RunningServer) -> AsyncIterator[Any]:
    """The official async client, in its strict mode and without retries."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(
        base_url=server.url, api_key="none", max_retries=0, _strict_response_validation=True
    ) as found:
        yield found
