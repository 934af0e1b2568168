"""Loads the settings: defaults, then the file, then the environment, then flags; every fault at once."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from treadle.settings.build import Builder
from treadle.settings.environment import CONFIG_VARIABLE, apply_environment
from treadle.settings.plugins import complete_plugins, take_sections
from treadle.settings.providers import complete_providers
from treadle.settings.schema import Settings
from treadle.settings.telemetry import complete_telemetry, telemetry_faults
from treadle.settings.tree import Branch, Fault, Origin, Value, merge, put
from treadle.wire.templates import search_template_faults

DEFAULT_FILE = "treadle.yaml"


class Flag(msgspec.Struct, frozen=True):
    """A setting given on the command line: its dotted path, its value, and the flag's name."""

    path: str
    value: bool | int | float | str
    name: str


class InvalidSettings(Exception):
    """The configuration has faults; the message lists them, one a line."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = faults


class Loaded(msgspec.Struct):
    """What was loaded. With `faults`, `settings` has defaults in the faulty places and must not be served from."""

    settings: Settings
    faults: list[Fault]
    origins: dict[str, Origin]
    """Where each setting came from, by dotted path."""
    file: str = ""
    """The configuration file that was read; empty if there was none."""
    unused: list[str] = []
    """Variables that begin like ours but set nothing."""
    notes: list[str] = []
    """What is worth a warning and keeps nothing from working."""

    def require(self) -> Settings:
        """The settings; InvalidSettings if there are faults."""
        if self.faults:
            raise InvalidSettings(self.faults)
        return self.settings


def load(
    config: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Iterable[Flag] = (),
    found: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Loaded:
    """Loads the settings. Never raises for what was written; see `Loaded.faults` and `Loaded.require`.

    Without `config`, the file that TREADLE_CONFIG names is read, else `treadle.yaml` in the working directory if it
    is there. `environ` stands in for the process's environment. `found` are model servers that answered on this
    machine (vendor, then address); they fill in where nothing else names the vendor. `overrides` are what a program
    says itself, nested as in the file, and win over everything else.
    """
    environ = os.environ if environ is None else environ
    tree: Branch = {}
    file = _config_file(config, environ)
    if file is not None:
        from treadle.settings.yaml_file import read_yaml  # YAML is not needed where there is no file

        tree, faults = read_yaml(file, environ)
        if faults and not tree:
            return Loaded(Settings(), faults, {}, str(file))
    else:
        faults = []
    variable_faults, unused = apply_environment(tree, environ)
    for flag in flags:
        put(tree, flag.path.split("."), Value(flag.value, Origin("flag", flag.name)))
    merge(tree, overrides or {}, Origin("argument"))
    provider_faults = complete_providers(tree, environ, found or {})
    notes = complete_telemetry(tree, environ)
    sections = take_sections(tree)
    builder = Builder()
    settings = builder.struct(Settings, tree, "")
    settings.data_dir = str(Path(settings.data_dir).expanduser().absolute())
    faults = [*faults, *variable_faults, *builder.faults, *provider_faults]
    faults += [*_exposed(settings, builder.origins), *_store(settings, builder.origins)]
    faults += _templates(settings, builder.origins)
    faults += complete_plugins(settings, sections, builder)
    faults += telemetry_faults(settings.telemetry, environ, builder.origins)
    return Loaded(settings, _first_of_each(faults), builder.origins, str(file or ""), unused, notes)


def _first_of_each(faults: list[Fault]) -> list[Fault]:
    """One fault a setting: what follows from an earlier one (a variable is unset, so a value is missing) is noise."""
    first: dict[str, Fault] = {}
    for fault in faults:
        first.setdefault(fault.path or fault.message, fault)
    return list(first.values())


def _config_file(config: str | Path | None, environ: Mapping[str, str]) -> Path | None:
    named = config or environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named).expanduser()
    usual = Path(DEFAULT_FILE)
    return usual if usual.is_file() else None


def is_loopback(host: str) -> bool:
    """Only programs on this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _templates(settings: Settings, origins: Mapping[str, Origin]) -> list[Fault]:
    given = settings.file_search
    faults = search_template_faults(
        header=given.header_template,
        context=given.context_template,
        footer=given.footer_template,
        annotation=given.annotation_template,
    )
    paths = {f"file_search.{name}_template": fault for name, fault in faults.items()}
    return [Fault(path, fault, origins.get(path, Origin("default"))) for path, fault in paths.items()]


def _store(settings: Settings, origins: Mapping[str, Origin]) -> list[Fault]:
    scheme, separator, rest = settings.store.url.partition("://")
    if not separator or (scheme == "sqlite" and rest.startswith("/") and len(rest) > 1):
        return []
    path = "store.url"
    if scheme not in ("postgresql", "postgres"):
        # Not the whole address: it may hold a password.
        message = f"`{scheme}://` is not supported; give the path of a SQLite file, sqlite:///path or postgresql://"
    elif settings.secret_key:
        return []
    else:
        path = "secret_key"
        message = (
            "must be set where `store.url` is Postgres, to the same for all processes: what one hands out, such as "
            "encrypted reasoning, others get back. `openssl rand -hex 32` prints a good one"
        )
    return [Fault(path, message, origins.get(path, Origin("default")))]


def _exposed(settings: Settings, origins: Mapping[str, Origin]) -> list[Fault]:
    server = settings.server
    if server.allow_unauthenticated or is_loopback(server.host):
        return []
    message = (
        f"`{server.host}` can be reached from other machines, and no one has to show a key. If that is what you want, "
        "start with --insecure or set `server.allow_unauthenticated: true`; else listen on 127.0.0.1"
    )
    return [Fault("server.host", message, origins.get("server.host", Origin("default")))]
