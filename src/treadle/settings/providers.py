"""Completes the `models` section: vendors found by name, keys and addresses from the environment and the table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from treadle.models.vendors import EMBEDDED, GENERIC, VENDORS, Vendor, find_vendor
from treadle.settings.tree import Branch, Fault, Origin, Value, did_you_mean, get, origin_of

_PLACEHOLDER = re.compile(r"\{([A-Z_]+)\}")


def complete_providers(tree: Branch, environ: Mapping[str, str], found: Mapping[str, str]) -> list[Fault]:
    """Fills what the sections leave open and adds a section for every vendor that only the environment names.

    `found` are servers that answered on this machine: vendor, then address.
    """
    if not isinstance(tree.setdefault("models", {}), dict):
        if getattr(tree["models"], "data", None) is not None:
            return []  # the type check names the fault
        tree["models"] = {}
    models = tree["models"]
    assert isinstance(models, dict)
    faults: list[Fault] = []
    rows: dict[str, Vendor] = {}
    for name, section in list(models.items()):
        if isinstance(section, Value) and section.data is None:
            section = models[name] = {"vendor": Value(None, section.origin)}
        if isinstance(section, dict):
            row, fault = _vendor(name, section)
            faults += [fault] if fault else []
            rows |= {name: row} if row else {}
    for row in VENDORS:
        if row not in rows.values() and row.name not in models and _is_offered(row, environ, found):
            models[row.name] = {}
            rows[row.name] = row
    for name, row in rows.items():
        section = models[name]
        assert isinstance(section, dict)
        faults += _complete(name, section, row, environ, found)
    return faults


def provider_url(row: Vendor, environ: Mapping[str, str]) -> str:
    """The vendor's own address, with its `{NAME}`s from the environment; empty if that cannot be told."""
    if any(not environ.get(name) for name in _PLACEHOLDER.findall(row.url)):
        return ""
    return _PLACEHOLDER.sub(lambda name: environ[name.group(1)], row.url)


def _vendor(name: str, section: Branch) -> tuple[Vendor | None, Fault | None]:
    path = f"models.{name}"
    where = origin_of(section)
    if "/" in name or not name:
        return None, Fault(path, "a provider's name must be without `/`, which separates it from the model", where)
    given = _text(section, "vendor")
    if given == EMBEDDED or (not given and name == EMBEDDED and not _text(section, "url")):
        return None, Fault(path, "the embedded model is configured under `local`; a server here needs its `url`", where)
    if given:
        row = find_vendor(given)
        if row is None:
            known = [vendor.name for vendor in VENDORS]
            message = f"`{given}` is not in the vendor table{did_you_mean(given, known)}"
            return None, Fault(f"{path}.vendor", message, origin_of(get(section, "vendor")))
    else:
        row = find_vendor(name) if name != EMBEDDED else None
        if row is None or _text(section, "kind") not in ("", row.kind):
            row = find_vendor(GENERIC)
    kind, kinds = _text(section, "kind"), {vendor.kind for vendor in VENDORS if vendor.name != EMBEDDED}
    if kind and kind not in kinds:
        message = f"`{kind}` is not a known dialect{did_you_mean(kind, kinds)}"
        return row, Fault(f"{path}.kind", message, origin_of(get(section, "kind")))
    return row, None


def _is_offered(row: Vendor, environ: Mapping[str, str], found: Mapping[str, str]) -> bool:
    """The environment says enough to use the vendor. A key alone does not where servers are self-hosted: their own
    processes read the same variables."""
    if _given_url(row, environ)[1] or row.name in found:
        return True
    return row.key_required and bool(environ.get(row.key_variable)) and bool(provider_url(row, environ))


def _complete(
    name: str, section: Branch, row: Vendor, environ: Mapping[str, str], found: Mapping[str, str]
) -> list[Fault]:
    table = Origin("vendor table", row.name)
    path = f"models.{name}"
    written = origin_of(section)
    if not _text(section, "vendor"):
        section["vendor"] = Value(row.name, table)
    if not _text(section, "kind"):
        section["kind"] = Value(row.kind, table)
    own = provider_url(row, environ)
    given = _text(section, "url")
    if given:
        section["url"] = Value(_with_path(given, row, only_bare=True), origin_of(section["url"]))
    elif (variable := _given_url(row, environ))[1]:
        section["url"] = Value(_with_path(variable[1], row), Origin("environment", variable[0]))
    elif row.name in found:
        section["url"] = Value(_with_path(found[row.name], row), Origin("found"))
    elif own:
        section["url"] = Value(own, table)
    url = _text(section, "url")
    if not url:
        return [Fault(f"{path}.url", _missing_url(name, row), written)]
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        shown = "" if "@" in url else f", not `{url}`"  # there may be a password in it
        message = f"must be an address starting with http:// or https://{shown}"
        return [Fault(f"{path}.url", message, origin_of(section["url"]))]
    if "@" in urlsplit(url).netloc:
        message = f"must not contain a user or password; give a key as `{path}.key`, or a header in `{path}.headers`"
        return [Fault(f"{path}.url", message, origin_of(section["url"]))]
    # A key must not go to an address that its vendor does not have, unless the same environment names both.
    trusted = not given or not own or url == own
    if not _text(section, "key") and environ.get(row.key_variable) and trusted:
        section["key"] = Value(environ[row.key_variable], Origin("environment", row.key_variable))
    if row.key_required and not _text(section, "key") and (url == own or not own):
        return [Fault(f"{path}.key", f"{row.title} needs a key; give it here or in {row.key_variable}", written)]
    return []


def _given_url(row: Vendor, environ: Mapping[str, str]) -> tuple[str, str]:
    """The variable that gives the vendor's address, and the address; both may be empty."""
    if environ.get(row.url_variable):
        return row.url_variable, environ[row.url_variable]
    if environ.get(row.host_variable):
        return row.host_variable, _completed(environ[row.host_variable], urlsplit(row.url))
    return "", ""


def _completed(host: str, usual: SplitResult) -> str:
    """`host:port`, either of which may be missing, as an address. What a server listens on becomes what reaches it."""
    scheme, separator, rest = host.strip().rpartition("://")
    place, slash, path = rest.partition("/")
    name, colon, port = place.rpartition(":") if not place.endswith("]") else (place, "", "")
    if not colon and not name:
        name, port = place, ""
    if name in ("", "0.0.0.0", "[::]"):  # noqa: S104 - compared, not listened on
        name = usual.hostname or ""
    standard = separator and not port  # an address with a scheme has the scheme's own port
    return f"{scheme or 'http'}://{name}" + ("" if standard else f":{port or usual.port}") + slash + path


def _missing_url(name: str, row: Vendor) -> str:
    names = _PLACEHOLDER.findall(row.url) or [row.url_variable] * bool(row.url_variable)
    if names:
        return f"is needed: give the server's address here, or set {' and '.join(names)} in the environment"
    hint = did_you_mean(name, [vendor.name for vendor in VENDORS])
    return f"is needed: the server's address, usually ending in /v1; or name a `vendor` of the table{hint}"


def _with_path(url: str, row: Vendor, only_bare: bool = False) -> str:
    """The address with the path of the vendor's API, if it lacks one."""
    url = (url if "://" in url or only_bare else f"http://{url}").rstrip("/")
    path = urlsplit(url).path
    if not row.path or path.endswith(row.path) or "/openai/" in path or (only_bare and path):
        return url
    return url + row.path


def _text(section: Branch, key: str) -> str:
    node = section.get(key)
    if not isinstance(node, Value):
        return ""
    return node.text if node.text is not None and node.data is not None else str(node.data or "")
