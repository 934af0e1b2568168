"""`treadle worker`: does what servers on the same Postgres have queued, and serves nobody."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys

from treadle.cli.faults import report, warn
from treadle.errors import ServerError
from treadle.settings import Flag, Settings, load


def worker(arguments: argparse.Namespace) -> int:
    """Works until told to stop; 1 if the settings have faults or what they name cannot be used."""
    level = arguments.log_level
    loaded = load(arguments.config, flags=[Flag("log_level", level, "--log-level")] if level is not None else [])
    if loaded.faults:
        return report(loaded.faults)
    warn(loaded.notes)
    settings = loaded.settings
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    if settings.background.workers == 0:
        return _refused(
            "`background.workers` is 0, so this worker would do nothing; for it alone: TREADLE_BACKGROUND__WORKERS=10"
        )
    try:
        return asyncio.run(_work(settings))
    except (ServerError, OSError, ValueError) as fault:
        return _refused(str(fault))


async def _work(settings: Settings) -> int:
    from treadle.app import create_worker  # the whole server hangs below it

    services = create_worker(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for one in (signal.SIGINT, signal.SIGTERM):
        if sys.platform != "win32":
            loop.add_signal_handler(one, stop.set)
    await services.start()
    try:
        print(f"Treadle works for the servers on its database, {settings.background.workers} responses at a time")
        sys.stdout.flush()
        await stop.wait()
    finally:
        await services.stop()
    return 0


def _refused(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 1
