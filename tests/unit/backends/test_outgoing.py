"""The guarded way out over real sockets: where it goes, what it takes with it, and where it stops."""

from __future__ import annotations

import asyncio
import datetime
import gzip
import ssl
import zlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from treadle.access.netguard import OutgoingGuard, plain_host, split_url
from treadle.backends.outgoing import MAX_REDIRECTS, OutgoingSession
from treadle.errors import AddressRefused, InvalidRequest, ToolFault
from treadle.testing.gates import Gate
from treadle.testing.web import FakeWeb


async def to_loopback(host: str, port: int) -> Sequence[str]:
    """A DNS in which every name is this machine."""
    del host, port
    return ["127.0.0.1"]


def guard(web: FakeWeb, *more: str) -> OutgoingGuard:
    return OutgoingGuard([f"127.0.0.1:{web.port}", *more], lookup=to_loopback)


@pytest.fixture
async def out(web: FakeWeb) -> AsyncIterator[OutgoingSession]:
    async with OutgoingSession(guard(web, "site.example"), timeout_seconds=10, max_bytes=100_000) as session:
        yield session


async def test_a_permitted_page_comes_with_its_type_and_charset(web: FakeWeb, out: OutgoingSession) -> None:
    url = web.page("/a?b=c".partition("?")[0], "Hällo", 'text/html; Charset="UTF-8"')
    body = await out.fetch(url + "?b=c#d", headers={"x-mine": "1"})
    assert (body.data.decode(), body.content_type, body.charset, body.cut) == ("Hällo", "text/html", "utf-8", False)
    request = web.requests[0]
    assert request.query == {"b": "c"}
    assert request.headers["x-mine"] == "1"
    assert "cookie" not in request.headers


async def test_a_refused_url_is_never_asked(web: FakeWeb) -> None:
    url = web.page("/secret", "secret")
    async with OutgoingSession(OutgoingGuard()) as session:
        with pytest.raises(InvalidRequest) as refusal:
            await session.fetch(url, param="input[0].file_url")
    assert refusal.value.param == "input[0].file_url"
    assert web.requests == []


async def test_a_name_that_leads_to_a_private_address_is_never_asked(web: FakeWeb) -> None:
    async with OutgoingSession(OutgoingGuard(lookup=to_loopback)) as session:
        with pytest.raises(AddressRefused):
            await session.fetch(web.url("/secret", host="public.example"))
    assert web.requests == []


async def test_the_connection_goes_to_the_address_that_was_checked_even_if_the_dns_changes(web: FakeWeb) -> None:
    answers = [["127.0.0.1"], ["127.0.0.2"]]
    asked = []

    async def rebinding(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return answers[len(asked) - 1]

    url = web.page("/a", "here")
    async with OutgoingSession(OutgoingGuard(["127.0.0.1"], lookup=rebinding)) as session:
        body = await session.fetch(url.replace("127.0.0.1", "site.example"))
        assert body.data == b"here"
        assert asked == ["site.example"]
        assert web.requests[0].headers["host"] == f"site.example:{web.port}"
        # Nothing is kept open that a later request could use without its address being judged.
        with pytest.raises(AddressRefused):
            await session.fetch(url.replace("127.0.0.1", "site.example"))
    assert len(web.requests) == 1


async def test_a_redirect_is_followed_and_reported(web: FakeWeb, out: OutgoingSession) -> None:
    web.redirect("/a", "/b?x=1")
    web.redirect("/b", web.url("/c", host="site.example"), status=308)
    web.page("/c", "there")
    body = await out.fetch(web.url("/a"))
    assert body.data == b"there"
    assert body.url == web.url("/c", host="site.example")


@pytest.mark.parametrize(
    "target",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://127.0.0.2/",
        "http://[::1]/",
        "http://2130706433/",
        "http://0x7f.1/",
        "//10.0.0.1/x",
        "http://user:password@site.example/",
        "file:///etc/passwd",
        "gopher://site.example/",
        "http://private.example/",
    ],
)
async def test_a_redirect_to_a_refused_address_is_not_followed(web: FakeWeb, out: OutgoingSession, target: str) -> None:
    with pytest.raises(AddressRefused):
        await out.fetch(web.redirect("/a", target))
    assert len(web.requests) == 1


async def test_a_circle_of_redirects_ends(web: FakeWeb, out: OutgoingSession) -> None:
    with pytest.raises(ToolFault, match="redirects more than"):
        await out.fetch(web.redirect("/a", "/a"))
    assert len(web.requests) == MAX_REDIRECTS + 1


async def test_a_redirect_to_nonsense_is_a_fault(web: FakeWeb, out: OutgoingSession) -> None:
    with pytest.raises(ToolFault):
        await out.fetch(web.redirect("/a", "http://[::1/"))


async def test_headers_do_not_follow_to_another_origin_and_do_not_come_back(web: FakeWeb, out: OutgoingSession) -> None:
    web.redirect("/a", "/b")
    web.redirect("/b", web.url("/c", host="site.example"))
    web.redirect("/c", web.url("/d"))
    web.page("/d", "end")
    await out.fetch(web.url("/a"), headers={"authorization": "Bearer secret"})
    sent = [request.headers.get("authorization") for request in web.requests]
    assert sent == ["Bearer secret", "Bearer secret", None, None]


async def test_cookies_are_not_kept(web: FakeWeb, out: OutgoingSession) -> None:
    url = web.page("/a", "x", headers={"set-cookie": "a=b"})
    await out.fetch(url)
    await out.fetch(url)
    assert "cookie" not in web.requests[1].headers


async def test_a_proxy_of_the_environment_is_not_used(
    web: FakeWeb, out: OutgoingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9/")
    assert (await out.fetch(web.page("/a", "x"))).data == b"x"


async def test_a_body_of_the_limit_is_taken_and_one_byte_more_is_not(web: FakeWeb, out: OutgoingSession) -> None:
    assert len((await out.fetch(web.page("/a", b"x" * 100_000))).data) == 100_000
    with pytest.raises(ToolFault, match="100000 bytes"):
        await out.fetch(web.page("/b", b"x" * 100_001))
    assert len((await out.fetch(web.url("/b"), max_bytes=5, cut=True)).data) == 5
    assert (await out.fetch(web.url("/b"), max_bytes=5, cut=True)).cut
    assert not (await out.fetch(web.url("/a"), max_bytes=100_000, cut=True)).cut


async def test_an_endless_body_is_left_at_the_limit(web: FakeWeb, out: OutgoingSession) -> None:
    async with asyncio.timeout(10):
        with pytest.raises(ToolFault, match="larger"):
            await out.fetch(web.endless("/a"))
        await web.requests[0].disconnected.within()


async def test_a_body_that_stands_still_is_given_up_and_the_connection_closed(web: FakeWeb) -> None:
    url = web.slow("/a", b"first", Gate())
    async with OutgoingSession(guard(web), timeout_seconds=0.2) as session:
        with pytest.raises(ToolFault, match=r"longer than the 0\.2 s"):
            await session.fetch(url)
        await web.requests[0].disconnected.within()


async def test_cancelling_closes_the_connection(web: FakeWeb, out: OutgoingSession) -> None:
    arrived = Gate()

    class Arrival(Gate):
        async def wait(self) -> None:
            arrived.set()
            await super().wait()

    task = asyncio.create_task(out.fetch(web.slow("/a", b"first", Arrival())))
    await arrived.within()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await web.requests[0].disconnected.within()


def _raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress(b"hello " * 1000, mtime=0)),
        ("X-Gzip", gzip.compress(b"hello " * 1000, mtime=0)),
        ("deflate", zlib.compress(b"hello " * 1000)),
        ("deflate", _raw_deflate(b"hello " * 1000)),
        ("identity", b"hello " * 1000),
    ],
)
async def test_a_packed_body_is_unpacked(web: FakeWeb, out: OutgoingSession, encoding: str, packed: bytes) -> None:
    body = await out.fetch(web.page("/a", packed, headers={"content-encoding": encoding}))
    assert body.data == b"hello " * 1000


async def test_a_body_that_unpacks_to_very_much_is_left_at_the_limit(web: FakeWeb, out: OutgoingSession) -> None:
    bomb = gzip.compress(b"\0" * 50_000_000, mtime=0)
    with pytest.raises(ToolFault, match="larger"):
        await out.fetch(web.page("/a", bomb, headers={"content-encoding": "gzip"}))


@pytest.mark.parametrize(
    ("encoding", "packed"), [("br", b"x"), ("gzip, gzip", b"x"), ("gzip", b"not gzip"), ("deflate", b"\x78no")]
)
async def test_a_body_that_cannot_be_unpacked_is_a_fault(
    web: FakeWeb, out: OutgoingSession, encoding: str, packed: bytes
) -> None:
    with pytest.raises(ToolFault):
        await out.fetch(web.page("/a", packed, headers={"content-encoding": encoding}))


@pytest.mark.parametrize(("status", "said"), [(404, "404 Not Found"), (500, "500"), (403, "403 Forbidden"), (299, "")])
async def test_a_status_of_failure_is_a_fault_that_names_it(
    web: FakeWeb, out: OutgoingSession, status: int, said: str
) -> None:
    url = web.page("/a", "x", status=status)
    if status == 299:
        assert (await out.fetch(url)).data == b"x"
        return
    with pytest.raises(ToolFault, match=said):
        await out.fetch(url)


async def test_a_port_where_nobody_listens_is_a_fault_in_plain_words(web: FakeWeb) -> None:
    async with OutgoingSession(OutgoingGuard(["127.0.0.1"])) as session:
        with pytest.raises(ToolFault, match="cannot be reached"):
            await session.fetch("http://127.0.0.1:9/")


async def test_faults_of_whoever_reads_the_answer_stay_what_they_are(web: FakeWeb, out: OutgoingSession) -> None:
    url = web.page("/a", "x")
    for kind in (ValueError, TimeoutError, OSError):
        with pytest.raises(kind, match="mine"):
            async with out.open(url):
                raise kind("mine")


async def test_a_caller_s_headers_do_not_say_where_the_request_goes(web: FakeWeb, out: OutgoingSession) -> None:
    sent = {"Host": "evil.example", "Content-Length": "5", "Accept-Encoding": "br", "User-Agent": "mine"}
    await out.fetch(web.page("/a", "x"), headers=sent)
    headers = web.requests[0].headers
    assert headers["host"] == f"127.0.0.1:{web.port}"
    assert headers["accept-encoding"] == "gzip, deflate"
    assert headers["user-agent"] == "mine"
    assert "content-length" not in headers


async def test_no_packet_leaves_for_an_address_that_was_not_given(web: FakeWeb) -> None:
    class Elsewhere:
        """A guard that permits a literal address but gives another one to connect to."""

        def check_url(self, url: str, param: str) -> None:
            pass

        async def resolve(self, host: str, port: int) -> list[str]:
            return ["127.0.0.77"]

    async with OutgoingSession(Elsewhere()) as session:
        with pytest.raises(AddressRefused):
            await session.fetch(web.page("/a", "x"))
    assert web.requests == []


@given(st.text("aA1.:@/\\?#[]%x-_ü。０１ſßΣ\u200d", max_size=24))
def test_the_guard_and_the_http_client_see_the_same_host(text: str) -> None:
    url = f"http://{text}/"
    try:
        host, port = split_url(url)
        target = URL(url)
    except ValueError:
        return
    assert target.raw_host is not None
    assert (plain_host(target.raw_host), target.port) == (host, port)


async def test_many_at_once_keep_to_their_own_addresses(web: FakeWeb) -> None:
    async def by_name(host: str, port: int) -> Sequence[str]:
        del port
        return ["127.0.0.1"] if host.startswith("good") else ["127.0.0.3"]

    web.page("/a", "x")
    async with OutgoingSession(OutgoingGuard(["127.0.0.1"], lookup=by_name)) as session:
        found = await asyncio.gather(
            *(
                session.fetch(web.url("/a", host=f"{'good' if number % 2 else 'bad'}{number}.example"))
                for number in range(40)
            ),
            return_exceptions=True,
        )
    assert [isinstance(one, AddressRefused) for one in found] == [number % 2 == 0 for number in range(40)]
    assert len(web.requests) == 20


def certified(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The two ends of TLS for a host of that name, whose certificate the client's end trusts."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    whole = folder / "host.pem"
    whole.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(whole)
    client = ssl.create_default_context(cadata=certificate.public_bytes(serialization.Encoding.PEM).decode())
    return server, client


async def test_tls_keeps_the_name_although_the_address_is_pinned(tmp_path: Path) -> None:
    server, client = certified(tmp_path, "site.example")
    asked: list[str | None] = []
    server.sni_callback = lambda _, name, __: asked.append(name)
    async with FakeWeb(tls=server) as web:
        web.page("/a", "safe")
        async with OutgoingSession(guard(web), tls=client) as session:
            body = await session.fetch(web.url("/a", host="site.example"))
            assert body.data == b"safe"
            assert asked == ["site.example"]
            with pytest.raises(ToolFault, match="no valid certificate"):
                await session.fetch(web.url("/a", host="other.example"))
