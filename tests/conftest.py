"""What every test may use: the event loop it runs on and a scripted model server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings

from tests import postgres_kit
from tests.postgres_kit import Cluster
from treadle.testing.upstream import ScriptedUpstream

pytest.register_assert_rewrite("treadle.testing.conformance", "treadle.testing.conformance_store")


# A shell that runs the tests in the background has them ignore Ctrl-C, and the programs they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Machines that run tests are busy: how long an example takes says nothing about it.
settings.register_profile("treadle", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("treadle")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--loop",
        choices=("asyncio", "uvloop", "both"),
        default="asyncio",
        help="event loop under the async tests; the server itself runs on uvloop where there is one",
    )


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    del item
    chosen: str = config.getoption("--loop")
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {}
    if chosen in ("asyncio", "both"):
        factories["asyncio"] = asyncio.new_event_loop
    if chosen in ("uvloop", "both"):
        import uvloop

        factories["uvloop"] = uvloop.new_event_loop
    return factories


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    """A scripted model server; after the test every scripted turn must have been asked for, and nothing else."""
    async with ScriptedUpstream() as server:
        yield server
    server.assert_consumed()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A real Postgres, for all tests of a process. Skips the test where the package that brings it is missing."""
    postgres_kit.require()
    # Not in pytest's own folder: any other session shuts that to everybody else, and so to whom Postgres runs as.
    with TemporaryDirectory(prefix="treadle-postgres-", ignore_cleanup_errors=True) as folder:
        cluster = Cluster(Path(folder) / "data")
        yield cluster
        cluster.remove()


@pytest.fixture
def postgres_url(cluster: Cluster) -> str:
    """The address of an empty database at the newest revision."""
    return cluster.empty()


@pytest.fixture
def postgres_database(cluster: Cluster) -> Iterator[str]:
    """The name of a database at the newest revision that is the test's own."""
    name = cluster.fresh()
    yield name
    cluster.drop(name)
