"""Where a server may listen, and TLS over TCP: each with a real server."""

from __future__ import annotations

import datetime
import ipaddress
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from egs_core.cli.serve import _to_set, default_data, first_line
from egs_core.client.places import find_address
from egs_core.client.sockets import leave_socket
from egs_core.errors import InputError
from egs_core.server import serving
from egs_core.server.doors import Door
from egs_core.server.serving import local_socket
from tests.unit.server.real_site import PATIENCE_S, RealSite


def certificate(folder: Path) -> tuple[Path, Path]:
    """One for 127.0.0.1 that has signed itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gpu01")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = builder.add_extension(address, critical=False).sign(key, hashes.SHA256())
    cert, private = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private.touch(0o600)
    private.write_bytes(key.private_bytes(*pem))
    return cert, private


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "gpu01"])
def test_wider_than_loopback_needs_tls(host: str) -> None:
    """Or that somebody else does it."""
    with pytest.raises(InputError, match="--host"):
        Door(host).check()
    Door(host, behind_proxy=True).check()
    Door(host, tls_cert=Path("c"), tls_key=Path("k")).check()


def test_what_is_no_certificate_is_named(tmp_path: Path) -> None:
    """A key without its certificate, what is not there, what is none, and a key that everyone may read."""
    cert, key = certificate(tmp_path)
    other = tmp_path / "other.pem"
    other.write_text("no certificate")
    other.chmod(0o600)
    with pytest.raises(InputError, match="--tls-key: is missing"):
        Door(tls_cert=cert).check()
    for door in (
        Door(tls_cert=cert, tls_key=tmp_path / "none"),
        Door(tls_cert=other, tls_key=key),
        Door(tls_cert=cert, tls_key=other),
    ):
        with pytest.raises(InputError, match="cannot be"):
            door.tls()
    key.chmod(0o644)
    with pytest.raises(InputError, match="everyone may read it"):
        Door(tls_cert=cert, tls_key=key).tls()


@pytest.mark.slow
def test_over_tls(tmp_path: Path) -> None:
    """A server at all addresses: a client that trusts its certificate is answered, one that does not sends nothing,
    one without TLS gets nothing, and the Unix socket goes on without."""
    cert, key = certificate(tmp_path)
    site = RealSite(tmp_path / "site", gpus=1)
    try:
        site.start("--host", "0.0.0.0", "--tls-cert", str(cert), "--tls-key", str(key))
        url = site.ready["url"]
        assert url.startswith("https://127.0.0.1:")
        assert site.client.runs().devices[0].id == "0"
        assert "1 of 1" in site.egs("ps", EGS_URL=url, EGS_CA=str(cert)).stdout
        refused = site.egs("ps", EGS_URL=url)
        assert (refused.returncode, "certificate verify failed" in refused.stderr) == (2, True), refused.stderr
        gone = site.egs("ps", EGS_URL=url, EGS_CA=str(tmp_path / "none"))
        assert (gone.returncode, "EGS_CA" in gone.stderr) == (2, True)
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert not plain.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        site.close()


def test_a_standby_has_its_socket_where_all_users_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the active server's: users of the host have no token, and a data folder is its owner's alone. A server
    without a database to share has none there, and the first place again when nobody answers at it."""
    monkeypatch.setenv("EGS_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "data").mkdir()
    first, active = local_socket(tmp_path / "data", "egs-8470.sock")
    second, standby = local_socket(tmp_path / "data", "egs-8471.sock")
    other, alone = local_socket(tmp_path / "data")
    assert [first, second, other] == [
        tmp_path / "run" / "egs.sock",
        tmp_path / "run" / "egs-8471.sock",
        tmp_path / "data" / "egs.sock",
    ]
    active.close()
    again, next_one = local_socket(tmp_path / "data", "egs-8472.sock")
    assert again == first
    for one in (standby, alone, next_one):
        one.close()


def test_a_socket_that_is_chosen_is_there_or_it_is_said_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nowhere else, also where the usual place is free; one that a killed server left is taken, a living one's not, and
    no file that is none."""
    monkeypatch.setenv("EGS_RUNTIME_DIR", str(tmp_path / "run"))
    chosen = tmp_path / "mine" / "second.sock"
    path, first = local_socket(tmp_path, chosen=chosen)
    assert (path, (tmp_path / "run").exists()) == (chosen, False)
    file = tmp_path / "file"
    file.touch()
    for place, why in (
        (chosen, "another server listens there"),
        (file, f"{file} is no socket"),
        (tmp_path / ("long" * 30), "AF_UNIX path too long"),
        (file / "egs.sock", "File exists"),
    ):
        with pytest.raises(InputError, match=rf"--socket .*: {why} \(choose another path"):
            local_socket(tmp_path, chosen=place)
    assert file.exists()
    first.close()
    again, second = local_socket(tmp_path, chosen=chosen)
    assert again == chosen
    second.close()


@pytest.mark.slow
def test_two_servers_of_one_user_stand_side_by_side(tmp_path: Path) -> None:
    """The second where its --socket says, and each has its own runs; its place is free again when it has ended. It has
    no GPUs: that is said, and what needs none runs."""
    chosen = tmp_path / "beside" / "egs.sock"
    first, second = RealSite(tmp_path / "first"), RealSite(tmp_path / "second", 0)
    second.environment["EGS_RUNTIME_DIR"] = first.environment["EGS_RUNTIME_DIR"]
    try:
        first.start()
        second.start("--socket", str(chosen))
        assert (first.ready["socket"], second.ready["socket"]) == (f"{tmp_path}/first/run/egs.sock", str(chosen))
        url = f"unix://{chosen}"
        number = second.egs("run", "--detach", "--hold", "--json", "--", "true", EGS_URL=url).stdout
        assert ("true" in second.egs("ps", EGS_URL=url).stdout, "true" in second.egs("ps").stdout) == (True, False)
        assert second.egs("abort", str(json.loads(number)["id"]), EGS_URL=url).returncode == 0
        assert second.egs("run", "--", "true", EGS_URL=url).returncode == 0
        needs = second.egs("run", "--gpus", "1", "--", "true", EGS_URL=url)
        assert (needs.returncode, "no node has more than 0 GPUs" in needs.stderr) == (2, True)
        third = RealSite(tmp_path / "third", 1)
        told = third.egs("serve", "--emulated-gpus", "1", "--port", "0", "--socket", str(chosen))
        assert (told.returncode, "another server listens there (choose another path" in told.stderr) == (2, True)
    finally:
        assert second.server is not None
        second.server.terminate()
        told_last = second.server.communicate(timeout=PATIENCE_S)[1]
        second.close()
        first.close()
    assert "no GPU is offered here, as --emulated-gpus 0 says: runs that ask for none start" in told_last
    assert not chosen.exists()


def test_the_first_line_of_a_server_says_what_clients_have_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing where they find it by themselves."""
    monkeypatch.setenv("EGS_RUNTIME_DIR", str(tmp_path / "run"))
    usual, made = local_socket(tmp_path)
    chosen, beside = local_socket(tmp_path, chosen=tmp_path / "beside.sock")
    assert (_to_set(str(usual)), _to_set(str(chosen))) == ("", f" (clients need EGS_URL=unix://{chosen})")
    made.close()
    beside.close()


def test_the_first_line_of_a_server_names_its_dashboard(tmp_path: Path) -> None:
    """And what to log in with: nothing else tells a newcomer that there is one."""
    ready = serving.Ready("http://127.0.0.1:8470", str(tmp_path / "egs.sock"), "/tokens/ann", "/data", ("0", "1"), True)
    line = first_line(ready)
    assert line.startswith(f"2 emulated GPUs (0, 1) at http://127.0.0.1:8470 and unix://{tmp_path}/egs.sock ")
    told = "; dashboard at http://127.0.0.1:8470/dashboard; token of this user in /tokens/ann; data in /data"
    assert line.endswith(told)


def test_two_servers_that_start_at_once_have_two_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each looks whether the place is free before the other one has taken it, as after an update of both: the socket
    of the first is not taken away."""
    monkeypatch.setenv("EGS_RUNTIME_DIR", str(tmp_path / "run"))
    both_have_looked = threading.Barrier(2)
    look = serving._answers

    def looks(path: Path) -> bool:
        found = look(path)
        with suppress(threading.BrokenBarrierError):
            both_have_looked.wait(1.0)
        return found

    monkeypatch.setattr(serving, "_answers", looks)
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda name: local_socket(tmp_path, name), ("egs-8470.sock", "egs-8471.sock")))
    assert len({path for path, _ in made}) == 2
    for path, listening in made:
        assert look(path), path
        listening.close()


def test_a_server_that_ends_leaves_anothers_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is started while another one ends, and answers no more, has its place; its own socket it takes away."""
    monkeypatch.setenv("EGS_RUNTIME_DIR", str(tmp_path / "run"))
    path, ending = local_socket(tmp_path)
    first = path.stat()
    ending.close()
    again, started = local_socket(tmp_path)
    second = again.stat()
    leave_socket(path, first)
    assert (again, serving._answers(path)) == (path, True)
    started.close()
    leave_socket(again, second)
    leave_socket(again, second)
    assert not path.exists()


def test_a_user_without_another_place_finds_a_server_in_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container without systemd: neither /run/egs nor XDG_RUNTIME_DIR. One that is left there is no server, and
    a place for all users goes first."""
    monkeypatch.setenv("EGS_RUNTIME_DIR", str(tmp_path / "file" / "run"))
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "egs" / "server").mkdir(parents=True)
    path, made = local_socket(default_data())
    found = find_address()
    assert found is not None
    assert (found.socket, found.url) == (path, f"unix://{path}")
    monkeypatch.setenv("EGS_RUNTIME_DIR", str(tmp_path / "run"))
    shared, first = local_socket(default_data())
    found = find_address()
    assert found is not None
    assert found.socket == shared
    first.close()
    shared.unlink()
    made.close()
    assert path.exists()
    assert find_address() is None
