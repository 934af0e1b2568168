"""A web host on loopback, and a guard that knows of nothing else that is permitted."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from treadle.testing.web import FakeWeb


@pytest.fixture
async def web() -> AsyncIterator[FakeWeb]:
    async with FakeWeb() as host:
        yield host
