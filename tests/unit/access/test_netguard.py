"""The guard: what an address means counts, however it is written and whatever the DNS says."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.access.netguard import OddAddress, OutgoingGuard, kind_of, parse_entry, plain_host
from treadle.errors import AddressRefused, InvalidRequest, ToolFault

PUBLIC = ("93.184.215.14", "8.8.8.8", "1.1.1.1", "2606:4700::1111")
PRIVATE = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "198.18.0.1",
    "203.0.113.9",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:0:127.0.0.1",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "3fff::1",
    "4000::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]


def lookup(**names: str) -> Callable[[str, int], object]:
    """A DNS of the test's own: underscores stand for dots, several addresses are separated by spaces."""

    async def find(host: str, port: int) -> Sequence[str]:
        found = names.get(host.replace(".", "_"))
        if found is None:
            raise OSError(-2, "Name or service not known")
        return found.split()

    return find


def guard(*allow: str, **names: str) -> OutgoingGuard:
    return OutgoingGuard(allow, lookup=lookup(**names))  # type: ignore[arg-type]


def url_of(address: str) -> str:
    return f"http://[{address}]/" if ":" in address else f"http://{address}/"


@pytest.mark.parametrize("address", PRIVATE)
def test_a_literal_address_that_is_not_public_is_refused_on_sight(address: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        guard().check_url(url_of(address), "server_url")
    assert refusal.value.param == "server_url"
    assert refusal.value.status == 400
    assert "`outgoing.allow`" in refusal.value.message


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_permitted(address: str) -> None:
    guard().check_url(url_of(address), "url")
    assert kind_of(ipaddress.ip_address(address)) is None


@pytest.mark.parametrize("address", PRIVATE)
async def test_a_name_that_leads_to_an_address_that_is_not_public_is_refused(address: str) -> None:
    with pytest.raises(AddressRefused, match=r"outgoing\.allow"):
        await guard(site_example=address).resolve("site.example", 443)


@pytest.mark.parametrize(
    "url",
    [
        "http://2130706433/",
        "http://0x7f000001/",
        "http://017700000001/",
        "http://127.1/",
        "http://127.0.1/",
        "http://0x7f.0.0.1/",
        "http://0177.0.0.1/",
        "http://127.0.0.01/",
        "http://127.0.0.1./",
        "http://127.0.0.1.:80/",
        "http://①②⑦.⓪.⓪.①/",
        "http://１２７.0.0.1/",
        "http://127。0。0。1/",
        "http://127%2e0%2e0%2e1/",
        "http://%31%32%37.0.0.1/",
        "http://[::ffff:7f00:1]/",
        "http://[0:0:0:0:0:ffff:127.0.0.1]/",
        "http://[fe80::1%25eth0]/",
        "http://[fe80::1%eth0]/",
        "http://LOCALHOST/",
        "http://localhost./",
        "http://a.localhost/",
        "http://localhost/",
        "http://a.example@127.0.0.1/",
        "http://127.0.0.1@a.example/",
        "http://user:password@a.example/",
        "http://a.example\\@127.0.0.1/",
        "http:\\\\127.0.0.1/",
        "http://a.example\t/",
        "http://a.example\n.evil.example/",
        " http://a.example/",
        "http://a.example/ b",
        "http://a.exa\u00admple/",
        "http://a.exa\u200bmple/",
        "http://a.example\x00/",
        "http://a.example/\x7f",
        "http://a.example:0/",
        "http://a.example:65536/",
        "http://a.example:８０/",
        "http://a.example:80:80/",
        "http://a.example:-1/",
        "http://1.2.3.4.5/",
        "http://8.8.8.8.8/",
        "http://256.1.1.1/",
        "http://a.example.0x7f/",
        "http://[::1/",
        "http://::1/",
        "http://[v1.x]/",
        "http://[]/",
        "http:///path",
        "http:a.example",
        "http://",
        "http://?x",
        "http://-a.example/",
        "http://a..example/",
        "http://.example/",
        "http://a_b!c/",
        "http://" + "a" * 64 + ".example/",
        "http://" + "a." * 130 + "example/",
        "http://a.example/" + "x" * 9000,
        "//a.example/",
        "a.example",
        "",
        "file:///etc/passwd",
        "ftp://a.example/",
        "gopher://a.example/",
        "data:text/plain,x",
        "javascript:alert(1)",
        "http+unix://a.example/",
    ],
)
def test_odd_spellings_and_other_schemes_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        guard("127.0.0.1:1").check_url(url, "file_url")
    assert refusal.value.param == "file_url"


@pytest.mark.parametrize(
    "url",
    [
        "http://a.example",
        "HTTPS://A.Example./x?y=z#f",
        "http://a.example:8080/",
        "http://a.example:/",
        "http://my_service/",
        "http://searxng:8080/",
        "http://xn--bcher-kva.example/",
        "https://bücher.example/Käse",
        "https://de.wikipedia.org/wiki/Käse?q=ä",
        "http://a.example/%20%0a@b",
        "http://a.example/http://127.0.0.1/",
        "http://a.example?@127.0.0.1/",
        "http://a.example#@127.0.0.1/",
        "http://1password.example/",
        "http://7.example/",
    ],
)
def test_ordinary_urls_are_permitted(url: str) -> None:
    guard().check_url(url, "url")


def spelled(address: ipaddress.IPv4Address) -> st.SearchStrategy[str]:
    """The ways in which programs accept an IPv4 address."""
    number = int(address)
    octets = list(address.packed)

    def parted(count: int, write: Sequence[Callable[[int], str]]) -> str:
        last = number & ((1 << (8 * (5 - count))) - 1)
        return ".".join(one(part) for one, part in zip(write, [*octets[: count - 1], last], strict=True))

    writers = st.sampled_from([str, hex, lambda part: f"0{part:o}", lambda part: f"0x{part:08X}"])
    legacy = st.integers(1, 4).flatmap(
        lambda count: st.lists(writers, min_size=count, max_size=count).map(lambda write: parted(count, write))
    )
    wide = "".join(chr(ord(char) - 0x30 + 0xFF10) if char.isdigit() else char for char in str(address))
    prefixes = ["::ffff:0:0", "::", "64:ff9b::"]
    embedded = st.sampled_from([int(ipaddress.IPv6Address(prefix)) | number for prefix in prefixes]).map(
        lambda inside: f"[{ipaddress.IPv6Address(inside)}]"
    )
    six_to_four = st.just(f"[{ipaddress.IPv6Address(0x2002 << 112 | number << 80)}]")
    literal = st.sampled_from([str(address), str(address) + ".", wide, wide.replace(".", "。")])
    return st.one_of(legacy, literal, six_to_four, embedded)


PRIVATE_NETWORKS = ["0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "192.168.0.0/16"]
private_v4 = st.sampled_from(PRIVATE_NETWORKS).flatmap(lambda net: st.ip_addresses(network=net))


@given(
    private_v4.flatmap(lambda address: spelled(ipaddress.IPv4Address(address))), st.sampled_from(["", ":80", ":8080"])
)
def test_no_spelling_of_a_private_address_is_permitted(host: str, port: str) -> None:
    with pytest.raises(InvalidRequest):
        guard().check_url(f"http://{host}{port}/", "url")
    with pytest.raises(AddressRefused):
        asyncio.run(guard().resolve(host.strip("[]"), 80))


@given(st.ip_addresses(v=4) | st.ip_addresses(v=6))
def test_what_is_permitted_is_public_by_python_s_own_account(address: ipaddress.IPv4Address) -> None:
    if kind_of(address) is None:
        assert address.is_global
        assert not address.is_multicast
        assert not address.is_loopback


@given(st.text(max_size=60) | st.text("0123456789abcdefx.:[]%@/\\。０-", max_size=40))
def test_any_text_is_permitted_or_refused_with_a_message(text: str) -> None:
    for url in (text, f"http://{text}/"):
        refusals = []
        try:
            guard().check_url(url, "url")
        except InvalidRequest as refusal:
            refusals.append(refusal)
        assert all(refusal.param == "url" and refusal.message for refusal in refusals)


@given(st.text(max_size=40) | st.text("abcXYZ0189.-:_", max_size=20))
def test_the_plain_form_of_a_host_is_its_own_plain_form(text: str) -> None:
    try:
        plain = plain_host(text)
    except OddAddress:
        return
    assert plain_host(plain) == plain


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:9000/"),
        ("127.0.0.1", "http://[::ffff:127.0.0.1]/"),
        ("::ffff:10.0.0.1", "http://10.0.0.1/"),
        ("10.0.0.0/8", "http://10.9.8.7/"),
        ("10.0.0.1/8", "http://10.9.8.7/"),
        ("::ffff:10.0.0.0/104", "http://10.9.8.7/"),
        ("192.168.1.20:8080", "http://192.168.1.20:8080/"),
        ("10.0.0.0/8:8080", "http://10.0.0.1:8080/"),
        ("fd00::/8", "http://[fd12::1]/"),
        ("[fd00::5]:8080", "http://[fd00::5]:8080/"),
        ("fd00::5", "http://[fd00:0::0005]/"),
        ("localhost", "http://localhost:3000/"),
        ("127.0.0.0/8", "http://localhost/"),
        ("169.254.169.254", "http://169.254.169.254/"),
        ("64:ff9b::/96", "http://[64:ff9b::10.0.0.1]/"),
        ("0.0.0.0/0", "http://10.0.0.1/"),
    ],
)
def test_what_is_listed_is_permitted(entry: str, url: str) -> None:
    guard(entry).check_url(url, "url")
    with pytest.raises(InvalidRequest):
        guard().check_url(url, "url")


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("127.0.0.1", "http://127.0.0.2/"),
        ("127.0.0.1", "http://2130706433/"),
        ("10.0.0.0/8", "http://192.168.0.1/"),
        ("192.168.1.20:8080", "http://192.168.1.20/"),
        ("192.168.1.20:443", "http://192.168.1.20/"),
        ("10.0.0.0/8:8080", "http://10.0.0.1:8081/"),
        ("169.254.0.0/16", "http://169.254.169.254/"),
        ("0.0.0.0/0", "http://100.100.100.200/"),
        ("fd00::/8", "http://[fd00:ec2::254]/"),
        ("nas.example", "http://10.0.0.1/"),
        ("*.example", "http://localhost/"),
    ],
)
def test_what_is_not_listed_stays_refused(entry: str, url: str) -> None:
    with pytest.raises(InvalidRequest):
        guard(entry).check_url(url, "url")


@pytest.mark.parametrize(
    "entry",
    ["", "*", "*.", "http://a.example", "a b", "10.0.0.0/33", "a.example:0", "a.example:99999", "1.2.3", "a/b", "-"],
)
def test_a_bad_entry_is_named(entry: str) -> None:
    with pytest.raises(ValueError, match=r"outgoing\.allow"):
        parse_entry(entry)


async def test_a_listed_host_is_permitted_with_any_address_and_only_that_host() -> None:
    found = guard(
        "nas.example", nas_example="10.0.0.5 192.168.0.5", other_example="10.0.0.5", sub_nas_example="10.0.0.5"
    )
    assert await found.resolve("NAS.example.", 80) == ["10.0.0.5", "192.168.0.5"]
    for host in ("other.example", "sub.nas.example"):
        with pytest.raises(AddressRefused):
            await found.resolve(host, 80)


async def test_a_listed_domain_permits_the_hosts_below_it_but_not_look_alikes() -> None:
    found = guard("*.corp.example", a_b_corp_example="10.0.0.5", corp_example="10.0.0.5", evilcorp_example="10.0.0.5")
    assert await found.resolve("a.b.corp.example", 443) == ["10.0.0.5"]
    for host in ("corp.example", "evilcorp.example"):
        with pytest.raises(AddressRefused):
            await found.resolve(host, 443)


async def test_a_listed_network_permits_names_that_lead_there_on_its_port() -> None:
    found = guard("10.0.0.0/8:8080", nas_example="10.0.0.5")
    assert await found.resolve("nas.example", 8080) == ["10.0.0.5"]
    with pytest.raises(AddressRefused):
        await found.resolve("nas.example", 80)


async def test_a_listed_name_does_not_lead_to_a_cloud_s_credentials() -> None:
    with pytest.raises(AddressRefused, match="metadata"):
        await guard("*.corp.example", x_corp_example="169.254.169.254").resolve("x.corp.example", 80)


async def test_one_bad_address_among_good_ones_refuses_the_name() -> None:
    with pytest.raises(AddressRefused):
        await guard(site_example="8.8.8.8 127.0.0.1").resolve("site.example", 80)


async def test_the_refusal_of_a_name_keeps_the_inner_address_to_itself() -> None:
    with pytest.raises(AddressRefused) as refusal:
        await guard(site_example="10.20.30.40").resolve("site.example", 80)
    assert "10.20.30.40" not in refusal.value.message
    assert "a private network" in refusal.value.message


async def test_public_addresses_come_back_once_each_and_in_their_plain_form() -> None:
    found = guard(site_example="8.8.8.8 ::ffff:8.8.8.8 2606:4700:0:0::1111")
    assert await found.resolve("site.example", 80) == ["8.8.8.8", "2606:4700::1111"]
    assert await found.resolve("2606:4700::1111", 80) == ["2606:4700::1111"]


async def test_an_unknown_name_is_a_fault_that_names_it() -> None:
    with pytest.raises(ToolFault, match=r"gone\.example"):
        await guard().resolve("gone.example", 80)


async def test_a_dns_that_does_not_answer_is_not_waited_for() -> None:
    async def never(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    async with asyncio.timeout(10):
        with pytest.raises(ToolFault, match=r"slow\.example"):
            await OutgoingGuard(lookup=never, lookup_seconds=0.01).resolve("slow.example", 80)


async def test_the_system_s_own_lookup_is_used_and_judged() -> None:
    with pytest.raises(AddressRefused):
        await OutgoingGuard().resolve("localhost", 80)
    found = await OutgoingGuard(["localhost"]).resolve("localhost", 80)
    assert set(found) <= {"127.0.0.1", "::1"}
    assert found
