"""``glt-lightning certs`` makes files with which hosts trust each other, and nobody else."""

from __future__ import annotations

import stat

import pytest
from cryptography import x509

from glt_lightning.base import OptionError, PeerError, RefusedError, SecurityOptions
from glt_lightning.workers import CertificateFolder, JobAuthority, Message, run_certs
from glt_lightning.workers.transport.base import Service
from glt_lightning.workers.transport.credentials import Credentials
from glt_lightning.workers.transport.flight_transport import FlightTransport

SERVICE = Service(lambda hello: {"name": "server"}, {"echo": lambda message, caller: Message(message.header)}, {})
HELLO = {"name": "client"}


def transport(folder, name, token=None):
    files = {"ca": folder / "ca.pem", "cert": folder / f"{name}.pem", "key": folder / f"{name}.key"}
    token_file = None if token is None else str(folder / token)
    return FlightTransport(
        Credentials.load(SecurityOptions(**{k: str(v) for k, v in files.items()}, token_file=token_file))
    )


def call(there, here):
    server = there.serve("127.0.0.1:0", SERVICE)
    try:
        connection = here.connect(server.address, HELLO, 5.0)
        try:
            return connection.call("echo", {"said": 1}).result(5.0).header
        finally:
            connection.close()
    finally:
        server.close()


def test_hosts_reach_each_other(tmp_path, capsys):
    run_certs(["--dir", str(tmp_path / "certs"), "--hosts", "node1+127.0.0.1,10.0.0.2", "--token"])
    folder = tmp_path / "certs"
    assert {path.name for path in folder.iterdir()} == {
        *("ca.pem", "ca.key", "node1.pem", "node1.key", "10.0.0.2.pem", "10.0.0.2.key", "token")
    }
    said = capsys.readouterr().out
    assert f"    cert: {folder}/node1.pem\n" in said
    assert f"    token_file: {folder}/token" in said
    assert call(transport(folder, "node1", "token"), transport(folder, "10.0.0.2", "token")) == {"said": 1}


def test_keys_are_for_their_owner_alone(tmp_path):
    run_certs(["--dir", str(tmp_path), "--hosts", "node1", "--token"])
    for path in tmp_path.iterdir():
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o600 if path.suffix == ".key" or path.name == "token" else 0o644), path


def test_a_host_is_added_to_the_same_authority(tmp_path):
    run_certs(["--dir", str(tmp_path), "--hosts", "127.0.0.1"])
    ca = (tmp_path / "ca.pem").read_bytes()
    run_certs(["--dir", str(tmp_path), "--hosts", "node2"])
    assert (tmp_path / "ca.pem").read_bytes() == ca
    assert call(transport(tmp_path, "127.0.0.1"), transport(tmp_path, "node2")) == {"said": 1}


def test_nothing_is_replaced_without_being_told(tmp_path):
    run_certs(["--dir", str(tmp_path), "--hosts", "node1"])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(OptionError, match=r"node1.pem.*exist already.*--force"):
        run_certs(["--dir", str(tmp_path), "--hosts", "node2,node1"])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    run_certs(["--dir", str(tmp_path), "--hosts", "node1", "--force"])
    assert (tmp_path / "node1.pem").read_bytes() != before["node1.pem"]
    assert (tmp_path / "ca.pem").read_bytes() == before["ca.pem"]


def test_another_authority_is_refused(tmp_path):
    for job in ("a", "b"):
        run_certs(["--dir", str(tmp_path / job), "--hosts", "127.0.0.1"])
    with pytest.raises(RefusedError, match="certificate"):
        call(transport(tmp_path / "a", "127.0.0.1"), transport(tmp_path / "b", "127.0.0.1"))


def test_a_certificate_of_another_host_is_refused(tmp_path):
    run_certs(["--dir", str(tmp_path), "--hosts", "10.9.9.9,127.0.0.1"])
    with pytest.raises(RefusedError, match="another host"):
        call(transport(tmp_path, "10.9.9.9"), transport(tmp_path, "127.0.0.1"))


def test_an_expired_certificate_is_refused(tmp_path):
    CertificateFolder(tmp_path).make_authority()
    CertificateFolder(tmp_path).make_certificate("old", ["127.0.0.1"], days=-1 + 1)  # ends now
    CertificateFolder(tmp_path).make_certificate("good", ["127.0.0.1"])
    with pytest.raises(PeerError):
        call(transport(tmp_path, "old"), transport(tmp_path, "good"))


def test_what_a_certificate_says(tmp_path):
    run_certs(["--dir", str(tmp_path), "--hosts", "node1+10.0.0.5", "--days", "30"])
    ca, cert = (x509.load_pem_x509_certificate((tmp_path / f).read_bytes()) for f in ("ca.pem", "node1.pem"))
    cert.verify_directly_issued_by(ca)
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["node1"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.5"]
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert 29 <= (cert.not_valid_after_utc - cert.not_valid_before_utc).days <= 30


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--hosts", "bad host"], "expected names or addresses"),
        (["--hosts", "a,,b"], "expected names or addresses"),
        (["--hosts", "a,a"], "names a host twice"),
        (["--hosts", "ca"], "would replace those of the authority"),
        (["--hosts", "a", "--days", "0"], "at least 1"),
    ],
)
def test_bad_input(tmp_path, argv, said):
    with pytest.raises(OptionError, match=said):
        run_certs(["--dir", str(tmp_path / "new"), *argv])
    assert not (tmp_path / "new").exists()


def test_an_authority_that_lost_its_key(tmp_path):
    run_certs(["--dir", str(tmp_path), "--hosts", "a"])
    (tmp_path / "ca.key").unlink()
    with pytest.raises(OptionError, match="no authority"):
        run_certs(["--dir", str(tmp_path), "--hosts", "b"])


def test_a_request_is_signed_and_its_key_stays(tmp_path):
    authority, folders = JobAuthority(), []
    for name in ("here", "there"):
        key, request = JobAuthority.request("127.0.0.1")
        assert b"PRIVATE" not in request
        ca, cert = authority.sign(request)
        folders.append(tmp_path / name)
        folders[-1].mkdir()
        for file, data in (("ca.pem", ca), ("own.pem", cert), ("own.key", key)):
            (folders[-1] / file).write_bytes(data)
    assert call(*(transport(folder, "own") for folder in folders)) == {"said": 1}
    (tmp_path / "there" / "own.pem").write_bytes(JobAuthority().sign(request)[1])  # of another job
    with pytest.raises(PeerError):
        call(*(transport(folder, "own") for folder in folders))
    with pytest.raises(OptionError, match="the request cannot be read"):
        authority.sign(b"no request")
