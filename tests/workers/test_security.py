"""Who is let in, and what those who are not are told."""

from __future__ import annotations

import datetime
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from glt_lightning.base import DeadlineOptions, OptionError, PeerLostError, RefusedError, SecurityOptions
from glt_lightning.workers.transport import flight_server
from glt_lightning.workers.transport.credentials import Certificates, Credentials, UnprovenError
from glt_lightning.workers.transport.flight_common import flight
from glt_lightning.workers.transport.flight_transport import FlightTransport
from tests.helpers.certificates import Authority
from tests.helpers.places import Desk, Place, pattern

pytestmark = pytest.mark.timeout(60)

TOKEN = "the secret of this job"
DAY = datetime.timedelta(days=1)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def host(authority: Authority) -> Certificates:
    return authority.certificates("127.0.0.1", "localhost")


@pytest.fixture
def places() -> Iterator[list[Place]]:
    opened: list[Place] = []
    yield opened
    for place in opened:
        place.close()


def at(places: list[Place], tls: Certificates | None = None, token: str | None = TOKEN) -> Place:
    """A host with these credentials."""
    place = Place("flight", FlightTransport(Credentials(token, tls), DeadlineOptions(connect_s=2, call_s=5)))
    places.append(place)
    return place


def test_mutual_tls(places: list[Place], desk: Desk, authority: Authority, host: Certificates) -> None:
    server = at(places, host).serve(desk.service())
    other = authority.certificates("node7")
    connection = at(places, other).connect(server.address)
    for bulk in (False, True):
        assert connection.call("grow", {"nbytes": 3_000_000}, bulk=bulk).result(10).body.nbytes == 3_000_000
    assert len(list(connection.stream("count", {"count": 3, "nbytes": 1_000_000}))) == 3
    for nbytes in (
        1,
        16_384,
        16_385,
        100_000,
        3_000_000,
    ):  # of requests and of replies, in one slice of gRPC's or in many
        body = pattern(nbytes)
        assert connection.call("echo", {}, body).result(10).body.tobytes() == body.tobytes()


def test_names_are_checked(places: list[Place], desk: Desk, authority: Authority) -> None:
    server = at(places, authority.certificates("node7")).serve(desk.service())
    with pytest.raises(RefusedError, match="the server's certificate is for another host"):
        at(places, authority.certificates("127.0.0.1")).connect(server.address)


@pytest.mark.parametrize("token", [None, "the secret of another", TOKEN + " "])
def test_another_secret(places: list[Place], desk: Desk, host: Certificates, token: str | None) -> None:
    for tls in (None, host):
        server = at(places, tls).serve(desk.service())
        with pytest.raises(RefusedError, match="the secret of this process is not the job's"):
            at(places, tls, token).connect(server.address)
        assert at(places, tls).connect(server.address).call("echo", {}).result(5).header == {}


class _TakesAny(Credentials):
    """Of a server that lets anybody in who shows whatever secret."""

    def accepts(self, token: str | None) -> bool:
        return True


def test_a_server_that_does_not_know_the_secret(places: list[Place], desk: Desk) -> None:
    """It would take what it is told, and its batches would be believed."""
    address = at(places, token=None).serve(desk.service()).address
    hint = "Start the server with the same cluster.security.token_file, or remove token_file here"
    with pytest.raises(
        UnprovenError, match=f"the server was started without a secret, but this process has the job's. {hint}"
    ):
        at(places).connect(address)
    with pytest.raises(
        UnprovenError, match=rf"server 0 \({address}\): handshake failed: the server was started without a secret"
    ):
        at(places).peer(address).ask("echo").result()
    assert at(places, token=None).connect(address).call("echo", {}).result(5).header == {}
    other = Place("flight", FlightTransport(_TakesAny("the secret of another")))
    places.append(other)
    with pytest.raises(UnprovenError, match="the server has another secret"):
        at(places).connect(other.serve(desk.service()).address)


def test_every_stream_has_its_own_proof(places: list[Place], desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC may have connected to another server by the time a stream or a second lane is opened."""
    connection = at(places).connect(at(places).serve(desk.service()).address)
    assert len(list(connection.stream("count", {"count": 3}))) == 3
    monkeypatch.setattr(flight_server, "proof_for", lambda opening, credentials: {})
    with pytest.raises(UnprovenError, match="was started without a secret"):
        list(connection.stream("count", {"count": 3}))
    with pytest.raises(UnprovenError, match="was started without a secret"):
        connection.call("echo", {}, bulk=True).result(5)


def test_a_server_of_another_authority(places: list[Place], desk: Desk, host: Certificates) -> None:
    server = at(places, Authority().certificates("127.0.0.1")).serve(desk.service())
    with pytest.raises(RefusedError, match="does not trust the server's certificate"):
        at(places, host).connect(server.address)


def test_a_client_of_another_authority(
    places: list[Place], desk: Desk, authority: Authority, host: Certificates
) -> None:
    greeted: list[object] = []
    server = at(places, host).serve(desk.service(lambda hello: greeted.append(hello) or {}))
    foreign = Authority().certificates("127.0.0.1")
    # it trusts the server, which does not trust it
    impostor = Certificates(authority.ca, foreign.cert, foreign.key)
    with pytest.raises(RefusedError, match="the server rejects the certificate of this process"):
        at(places, impostor).connect(server.address)
    assert greeted == []
    assert at(places, host).connect(server.address).call("echo", {}).result(5).header == {}


def test_a_certificate_that_has_expired(
    places: list[Place], desk: Desk, authority: Authority, host: Certificates
) -> None:
    expired = authority.certificates("127.0.0.1", begin=-2 * DAY, end=-DAY)
    server = at(places, host).serve(desk.service())
    with pytest.raises(RefusedError, match="the server rejects the certificate of this process"):
        at(places, expired).connect(server.address)
    server = at(places, expired).serve(desk.service())
    with pytest.raises(RefusedError, match=r"does not trust the server's certificate.*has expired"):
        at(places, host).connect(server.address)


def test_a_client_in_clear_text(places: list[Place], desk: Desk, host: Certificates) -> None:
    server = at(places, host).serve(desk.service())
    with pytest.raises(
        RefusedError, match="the server requires TLS with a client certificate, and this process has none"
    ):
        at(places).connect(server.address)


def test_a_server_in_clear_text(places: list[Place], desk: Desk, host: Certificates) -> None:
    server = at(places).serve(desk.service())
    with pytest.raises(RefusedError, match="the server uses clear text, and this process requires TLS"):
        at(places, host).connect(server.address)


def test_a_key_that_belongs_to_another_certificate(places: list[Place], desk: Desk, authority: Authority) -> None:
    one, two = authority.certificates("127.0.0.1"), authority.certificates("127.0.0.1")
    mixed = Certificates(authority.ca, one.cert, two.key)
    with pytest.raises(OptionError, match="cert and key belong together"):
        at(places, mixed).serve(desk.service())
    server = at(places, one).serve(desk.service())
    with pytest.raises(RefusedError, match=r"cert does not belong to cluster.security.key"):
        at(places, mixed).connect(server.address)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "10.1.2.3:0"])
def test_beyond_loopback_only_with_certificates(places: list[Place], desk: Desk, address: str) -> None:
    with pytest.raises(OptionError, match=r"cluster.security has no certificates.*insecure: true"):
        at(places).serve(desk.service(), address)


def test_beyond_loopback_if_the_user_says_so(desk: Desk, places: list[Place], host: Certificates) -> None:
    for credentials in (Credentials(TOKEN, None, insecure=True), Credentials(TOKEN, host)):
        place = Place("flight", FlightTransport(credentials))
        places.append(place)
        server = place.serve(desk.service(), "0.0.0.0:0")
        port = server.address.rpartition(":")[2]
        assert place.connect(f"127.0.0.1:{port}").call("echo", {}).result(5).header == {}


@pytest.mark.parametrize("address", ["10.255.254.253:0", "no.such.host.invalid:0"])
def test_an_address_that_is_not_of_this_host(places: list[Place], desk: Desk, host: Certificates, address: str) -> None:
    with pytest.raises(OptionError, match=r"Cannot assign requested address|not known"):
        at(places, host).serve(desk.service(), address)


def test_other_methods_of_flight_are_closed(places: list[Place], desk: Desk) -> None:
    server = at(places).serve(desk.service())
    schema = flight.FlightDescriptor.for_path("x")
    for token in (None, TOKEN):
        headers = [] if token is None else [(b"glt-token", token.encode())]
        options = flight.FlightCallOptions(headers=headers, timeout=5)
        with flight.FlightClient(f"grpc+tcp://{server.address}") as client:
            for method in (
                lambda c=client, o=options: list(c.list_flights(options=o)),
                lambda c=client, o=options: list(c.list_actions(options=o)),
                lambda c=client, o=options: list(c.do_action(flight.Action("eval", b"1"), options=o)),
                lambda c=client, o=options: c.get_flight_info(schema, options=o),
                lambda c=client, o=options: c.get_schema(schema, options=o),
            ):
                with pytest.raises((pa.ArrowException, OSError, NotImplementedError)) as caught:
                    method()
                assert ("wrong secret" in str(caught.value)) == (token is None)
    assert at(places).connect(server.address).call("echo", {}).result(5).header == {}


JUNK = [
    b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(3000),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + os.urandom(400),
    os.urandom(5000),
    b"\x00" * 100_000,
    b"",
]


@pytest.mark.parametrize("secure", [False, True])
def test_garbage_on_the_port_harms_nobody(
    places: list[Place], desk: Desk, host: Certificates, secure: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    place = at(places, host if secure else None)
    server = place.serve(desk.service())
    connection = place.connect(server.address)
    name, port = server.address.split(":")
    for junk in JUNK:
        with socket.create_connection((name, int(port)), timeout=5) as stranger:
            stranger.settimeout(0.2)
            try:
                stranger.sendall(junk)
                said = stranger.recv(1 << 16)
            except OSError:
                said = b""
            assert b"welcome" not in said
        assert connection.call("echo", {}).result(5).header == {}
    assert place.connect(server.address).call("echo", {}).result(5).header == {}
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.9\r\n", b"\xa5" * 300])
@pytest.mark.parametrize("secure", [False, True])
def test_somebody_else_at_the_address(places: list[Place], host: Certificates, secure: bool, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    stranger, _ = listener.accept()
                except OSError:
                    return
                with stranger:
                    stranger.settimeout(1)
                    stranger.recv(1000)
                    stranger.sendall(answer)

        stranger = threading.Thread(target=serve)
        stranger.start()
        try:
            with pytest.raises((RefusedError, PeerLostError)) as caught:
                at(places, host if secure else None).connect(f"127.0.0.1:{listener.getsockname()[1]}", timeout_s=2)
            assert "gRPC" not in str(caught.value)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            stranger.join(5)


def test_nobody_answers(places: list[Place]) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(PeerLostError, match=r"no answer to the greeting within 0.3 s"),
    ):
        at(places).connect(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.3)
    with pytest.raises(PeerLostError, match="the host name cannot be resolved"):
        at(places).connect("no.such.host.invalid:1")


def test_credentials_are_read_once(tmp_path: Path, host: Certificates) -> None:
    options = write(tmp_path, host)
    credentials = Credentials.load(options)
    for file in tmp_path.iterdir():
        file.unlink()
    assert credentials.tls == host
    assert credentials.token == TOKEN
    assert "PRIVATE" not in repr(credentials)
    assert TOKEN not in repr(credentials)
    assert Credentials.load(SecurityOptions(), "a token from elsewhere").token == "a token from elsewhere"
    assert Credentials.load(SecurityOptions()) == Credentials()


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("ca", None, r"cluster.security.ca: cannot read .*ca: No such file"),
        ("key", None, r"cluster.security.key: cannot read"),
        ("token_file", None, r"cluster.security.token_file: cannot read"),
        ("cert", b"hello", r"cluster.security.cert: .* contains no certificate in PEM format"),
        ("key", b"-----BEGIN CERTIFICATE-----", r"cluster.security.key: .* contains no private key in PEM format"),
        ("key", b"-----BEGIN ENCRYPTED PRIVATE KEY-----", r"without a passphrase"),
        ("token_file", b"short\n", r"16 to 1024 printable ASCII characters on one line, got 5"),
        ("token_file", b"two lines of text\nare one too many", "printable"),
        ("token_file", "a secret with ünicode".encode(), "printable"),
        ("token_file", b"x" * 2000, "got 2000"),
    ],
)
def test_files_that_cannot_be_used(
    tmp_path: Path, host: Certificates, file: str, content: bytes | None, said: str
) -> None:
    options = write(tmp_path, host)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(OptionError, match=said):
        Credentials.load(options)


def write(folder: Path, tls: Certificates) -> SecurityOptions:
    files = {"ca": tls.ca, "cert": tls.cert, "key": tls.key, "token_file": TOKEN.encode() + b"\n"}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return SecurityOptions(**{name: str(folder / name) for name in files})
