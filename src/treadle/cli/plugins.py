"""`treadle plugins`: what is installed, where it comes from, and whether it may run."""

from __future__ import annotations

from treadle.cli.faults import report, warn
from treadle.plugins import BrokenPlugin, Standing, load, survey
from treadle.settings import load as load_settings


def show(config: str | None) -> int:
    """Prints a line for each plug-in; the exit code, which is 1 if the configuration has faults."""
    loaded = load_settings(config)
    rows = [_row(standing) for standing in survey(loaded.settings.plugins.allowed)]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)).rstrip())
    if not rows:
        print("No plug-ins are installed, not even those of Treadle itself: install it again.")
    warn(loaded.notes)
    return report(loaded.faults)


def _row(standing: Standing) -> tuple[str, str, str, str, str]:
    offer, state, why = standing.offer, str(standing.state), standing.why
    if state == "allowed":
        try:
            load(offer)  # only what may run is imported
        except BrokenPlugin as broken:
            state, why = "broken", str(broken)
    origin = f"{offer.distribution} {offer.version}".rstrip()
    return offer.group, offer.name, origin, state, why
