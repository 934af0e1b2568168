"""No store method can be called without saying for whom."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import treadle.store
from treadle import ports

UNSCOPED = {
    "SqlIngestionQueue.claim",
    "SqlJobs.claim",
    "SqlJobs.renew",
    "SqlJobs.waiting",
    "SqlEventLog.append",
    "SqlEventLog.expire",
    "SqlFiles.expired",
    "SqlFiles.known",
}
"""What is done for nobody in particular: a worker takes up whatever waits, and is told for whom; claims are renewed and
what was said is logged for all jobs of a process at once, each under its claim. The sweeps remove what has expired, of
whomever, and ask which blobs belong to anybody at all. Operators are told how much waits."""


def stores() -> list[type]:
    """Every class in the store package that implements one of the ports, or is named as if it did."""
    names = [module.name for module in pkgutil.iter_modules(treadle.store.__path__, "treadle.store.")]
    modules = [importlib.import_module(name) for name in names]
    protocols = {name for name, port in vars(ports).items() if getattr(port, "_is_protocol", False)}
    promised = {port for port in vars(ports).values() if inspect.isclass(port) and port.__module__ == ports.__name__}
    return [
        found
        for module in modules
        for found in vars(module).values()
        if inspect.isclass(found) and found.__module__ == module.__name__
        if promised & set(found.__mro__[1:]) or found.__name__.removeprefix("Sql") in protocols
    ]


def test_every_public_method_of_every_store_takes_a_scope_first() -> None:
    checked = 0
    for store in stores():
        for name, method in inspect.getmembers(store, inspect.isfunction):
            if name.startswith("_") or f"{store.__name__}.{name}" in UNSCOPED:
                continue
            first = list(inspect.signature(method).parameters.values())[1:2]
            assert [parameter.annotation for parameter in first] == ["Scope"], f"{store.__name__}.{name}"
            checked += 1
    assert checked >= 19  # the two ports have that many methods: finding fewer means that stores() is broken
