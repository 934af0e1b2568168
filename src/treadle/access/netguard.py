"""Which addresses may be connected to when a caller or a model names them: public ones, and what the operator lists.

An address is judged by what it means, not by how it is written. Spellings that programs read differently (`127.1`,
`0x7f000001`, full-width digits, credentials before an `@`) are refused, whatever they mean. Names are judged by the
addresses they have, all of them; whoever connects must use the addresses that were judged (bug case 74).
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import unicodedata
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urlsplit

import idna
import msgspec

from treadle.errors import AddressRefused, InvalidRequest, ToolFault

SETTING = "outgoing.allow"
MAX_URL = 8192
"""Characters of a URL."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""Finds the addresses of a name. OSError if it has none."""

_HOST = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
_DOTS = str.maketrans("\u3002\uff0e\uff61", "...")

# Cloud machines serve credentials here; a listed network that merely contains one of them does not admit it.
_METADATA: frozenset[Address] = frozenset(
    map(
        ipaddress.ip_address,
        (
            "169.254.169.254",
            "169.254.170.2",
            "169.254.170.23",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
        ),
    )
)

# IANA's special-purpose registries; written out because what Python calls global differs between its releases.
_SPECIAL: tuple[tuple[Network, str], ...] = tuple(
    (ipaddress.ip_network(network), kind)
    for kind, networks in {
        "this machine": "0.0.0.0/8 127.0.0.0/8 ::/128 ::1/128",
        "a private network": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7 fec0::/10",
        "a carrier's inner network": "100.64.0.0/10",
        "the local link": "169.254.0.0/16 fe80::/10",
        "a multicast group": "224.0.0.0/4 ff00::/8",
        "a reserved range": "192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 "
        "240.0.0.0/4 ::/96 64:ff9b:1::/48 100::/64 100:0:0:1::/64 2001::/23 2001:db8::/32 3fff::/20 5f00::/16",
    }.items()
    for network in networks.split()
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_LOOPBACK = ipaddress.IPv4Address("127.0.0.1")


class OddAddress(ValueError):
    """A URL or host that is refused as it is written; the message says why."""


class AllowEntry(msgspec.Struct, frozen=True):
    """One entry of the setting: a host, all hosts below a domain, or a network; on one port or on all."""

    host: str = ""
    below: str = ""
    network: Network | None = None
    port: int | None = None


class OutgoingGuard:
    """The AddressGuard port.

    `allow` holds host names, `*.domain`, addresses and networks, each with `:port` if only that port is meant.
    Cloud metadata addresses are admitted only by an entry that is the address itself. ValueError for a bad entry.
    """

    def __init__(self, allow: Sequence[str] = (), *, lookup: Lookup | None = None, lookup_seconds: float = 5.0) -> None:
        self._entries = [parse_entry(entry) for entry in allow]
        self._lookup = lookup or _system_lookup
        self._lookup_seconds = lookup_seconds

    def check_url(self, url: str, param: str) -> None:
        """InvalidRequest, naming `param`, for a URL that is none, or whose host is refused without asking the DNS."""
        try:
            host, port = split_url(url)
            self._check_host(host, port)
        except (OddAddress, AddressRefused) as refusal:
            code = "invalid_url" if isinstance(refusal, OddAddress) else AddressRefused.code
            raise InvalidRequest(str(refusal), param=param, code=code) from None

    async def resolve(self, host: str, port: int) -> list[str]:
        """The addresses of `host`. AddressRefused if one of them is not permitted, ToolFault if there is none."""
        try:
            plain = plain_host(host)
        except OddAddress as odd:
            raise AddressRefused(str(odd)) from None
        self._check_host(plain, port)
        literal = _literal(plain)
        if literal is not None:
            return [str(_unmapped(literal))]
        try:
            async with asyncio.timeout(self._lookup_seconds):
                found = await self._lookup(plain, port)
        except TimeoutError:
            raise ToolFault(f"The address of '{plain}' could not be found within {self._lookup_seconds:g} s.") from None
        except (OSError, UnicodeError):
            raise ToolFault(f"The host '{plain}' could not be found.") from None
        addresses = [_unmapped(ipaddress.ip_address(text.partition("%")[0])) for text in found]
        if not addresses:
            raise ToolFault(f"The host '{plain}' has no address.")
        for address in addresses:
            kind = self._objection(plain, address, port)
            if kind is not None:
                # Which address it is stays unsaid: the names of an inner network are not for every caller to read.
                raise AddressRefused(
                    f"The host '{plain}' is in {kind}, which is not permitted. "
                    f"To permit it, add '{plain}' to `{SETTING}`."
                )
        return list(dict.fromkeys(map(str, addresses)))

    def _check_host(self, host: str, port: int) -> None:
        """AddressRefused for an address that is not permitted and for names of this machine."""
        literal = _literal(host)
        if literal is None and (host == "localhost" or host.endswith(".localhost")):
            literal = _LOOPBACK
        if literal is None:
            return
        kind = self._objection(host, _unmapped(literal), port)
        if kind is not None:
            raise AddressRefused(
                f"The address {host} is in {kind}, which is not permitted. To permit it, add '{host}' to `{SETTING}`."
            )

    def _objection(self, host: str, address: Address, port: int) -> str | None:
        """What speaks against the address, in words; None if it is permitted."""
        kind = kind_of(address)
        if kind is None:
            return None
        for entry in self._entries:
            if entry.port not in (None, port) or entry.network is None or address not in entry.network:
                continue
            if entry.network.num_addresses == 1 or not _is_metadata(address):
                return None
        return None if self._names(host, port) and not _is_metadata(address) else kind

    def _names(self, host: str, port: int) -> bool:
        """The setting lists the host by its name."""
        return any(
            entry.port in (None, port) and (entry.host == host or (entry.below and host.endswith(entry.below)))
            for entry in self._entries
        )


def kind_of(address: Address) -> str | None:
    """What kind of non-public address it is, in words; None if it is public."""
    address = _unmapped(address)
    if _is_metadata(address):
        return "the metadata service of a cloud"
    for network, kind in _SPECIAL:
        if address.version == network.version and address in network:
            return kind
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.sixtofour or (ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None)
        if inner is not None:
            return kind_of(inner)
        if address not in _GLOBAL_UNICAST:
            return "a reserved range"
    return None if address.is_global and not address.is_multicast else "a reserved range"


def split_url(url: str) -> tuple[str, int]:
    """The host, in its plain form, and the port of an http or https URL; refuses what programs read differently."""
    if len(url) > MAX_URL:
        raise OddAddress(f"The URL is longer than {MAX_URL} characters.")
    if any(char.isspace() or char == "\\" or unicodedata.category(char) in ("Cc", "Cf", "Cs") for char in url):
        raise OddAddress("The URL contains spaces, backslashes or invisible characters, which must be percent-encoded.")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        if not host.isascii():
            host = parts.netloc.partition(":")[0]  # small letters as IDNA has them, not as Python does
    except ValueError:
        raise OddAddress(f"'{_shown(url)}' is not a valid URL.") from None
    scheme = parts.scheme.lower()
    if scheme not in ("http", "https"):
        named = f"'{_shown(scheme)}'" if scheme else "none"
        raise OddAddress(f"Only http and https URLs are permitted; the scheme of this one is {named}.")
    if "@" in parts.netloc:
        raise OddAddress("The URL contains a user name or password, which is not permitted.")
    if not host or ("[" in parts.netloc and ":" not in host):
        raise OddAddress("The URL names no host.")
    if port == 0:
        raise OddAddress("The URL's port must be from 1 to 65535.")
    return plain_host(host), port if port is not None else (443 if scheme == "https" else 80)


def plain_host(host: str) -> str:
    """A host in the form that is compared: lower case, no final dot, international names in their ASCII form.

    Refuses spellings of addresses other than the usual one, and what is no host.
    """
    if len(host) > 255 or "%" in host:
        raise OddAddress(f"'{_shown(host)}' is not a host name.")
    if not host.isascii():
        host = _ascii_host(host)
    host = host.lower().removesuffix(".")
    if ":" in host:
        try:
            return str(ipaddress.IPv6Address(host.removeprefix("[").removesuffix("]")))
        except ValueError:
            raise OddAddress(f"'{_shown(host)}' is not an IPv6 address.") from None
    # A name whose last part is a number is an address to some programs and a name to others.
    if _NUMERIC_LABEL.fullmatch(host.rpartition(".")[2]):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise OddAddress(
                f"'{_shown(host)}' is an unusual way to write an address; write it like 192.0.2.1."
            ) from None
    if len(host) > 253 or not _HOST.fullmatch(host):
        raise OddAddress(f"'{_shown(host)}' is not a host name.")
    return host


def parse_entry(text: str) -> AllowEntry:
    """An entry of `outgoing.allow`. ValueError, naming the entry, if it is none."""
    entry, port = text.strip(), None
    found = re.fullmatch(r"(\[[^\]]*\]|[^\[\]:]*):([0-9]{1,5})", entry)
    if found:
        entry, port = found[1], int(found[2])
    entry = entry.removeprefix("[").removesuffix("]")
    problem = ValueError(
        f"`{SETTING}`: '{text}' is neither a host, a *.domain, an address nor a network such as 192.168.1.0/24."
    )
    if port is not None and not 1 <= port <= 65535:
        raise problem
    try:
        if "/" in entry:
            return AllowEntry(network=_unmapped_network(ipaddress.ip_network(entry, strict=False)), port=port)
        if entry.startswith("*."):
            return AllowEntry(below="." + plain_host(entry[2:]), port=port)
        host = plain_host(entry)
    except (OddAddress, ValueError):
        raise problem from None
    literal = _literal(host)
    if literal is not None:
        return AllowEntry(network=ipaddress.ip_network(_unmapped(literal)), port=port)
    return AllowEntry(host=host, port=port)


def _ascii_host(host: str) -> str:
    if unicodedata.normalize("NFKC", host).translate(_DOTS).isascii():
        raise OddAddress("The URL's host is written in look-alike characters; write it in plain ones.")
    try:
        return idna.encode(host, uts46=True).decode("ascii")  # as the HTTP clients do it
    except UnicodeError:
        raise OddAddress(f"'{_shown(host)}' is not a host name.") from None


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _unmapped(address: Address) -> Address:
    """The IPv4 address that an IPv6 spelling of it means to the operating system."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        return ipaddress.IPv6Address(int(address))  # without its zone
    return address


def _unmapped_network(network: Network) -> Network:
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= 96:
        inner = network.network_address.ipv4_mapped
        if inner is not None:
            return ipaddress.IPv4Network((inner, network.prefixlen - 96))
    return network


def _is_metadata(address: Address) -> bool:
    return address in _METADATA


def _shown(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


async def _system_lookup(host: str, port: int) -> Sequence[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]
