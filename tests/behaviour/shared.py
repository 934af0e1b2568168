"""One server for all tests of a module, where none of them minds what another has stored. It saves a start per test.

A module takes part by naming the fixtures:

    shared, model, server = one_server.shared, one_server.model, one_server.server
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from treadle.testing.server import RunningServer, settings_for
from treadle.testing.upstream import ScriptedUpstream

__all__ = ["model", "server", "shared"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ScriptedUpstream, RunningServer]]:
    folder = tmp_path_factory.mktemp("shared")
    with ScriptedUpstream() as upstream, RunningServer(settings_for(folder, upstream.url)) as running:
        yield upstream, running


@pytest.fixture
def model(shared: tuple[ScriptedUpstream, RunningServer]) -> Iterator[ScriptedUpstream]:
    """The model server with nothing scripted and nothing asked; whatever a test scripts must have been asked for."""
    upstream, _ = shared
    for left in (upstream.requests, upstream.unexpected, upstream.faults, upstream._script):
        left.clear()
    upstream.default = None
    yield upstream
    upstream.assert_consumed()


@pytest.fixture
def server(shared: tuple[ScriptedUpstream, RunningServer], model: ScriptedUpstream) -> RunningServer:
    return shared[1]
