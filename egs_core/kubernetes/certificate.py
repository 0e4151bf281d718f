"""The webhook's own certificate: made by the process that uses it, and told to the API server as the only one to trust.

The key never leaves this host, and nothing has to be kept: the next process makes another one.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from egs_core.errors import EgsError

if TYPE_CHECKING:
    from cryptography import x509

DAYS = 30
RENEW_S = 10 * 24 * 3600.0
"""It is renewed after a third of its time."""


def new_certificate(hosts: Sequence[str], now: datetime | None = None) -> tuple[bytes, bytes]:
    """A certificate for these names, signed by itself, and its key, in PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise EgsError("egs kubernetes: the webhook needs cryptography: pip install 'egs-core[kubernetes]'") from error
    key, begun = ec.generate_private_key(ec.SECP256R1()), now or datetime.now(UTC)
    serial = x509.random_serial_number()
    # a name of its own: of two with one name, while both are trusted, some would try the wrong one alone
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"egs webhook {serial:x}"[:64])])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(begun - timedelta(hours=1))
        .not_valid_after(begun + timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    written = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.PEM), written


def load_into(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """From now on new connections are answered with it."""
    with tempfile.TemporaryDirectory(prefix="egs-webhook-") as folder:  # readable by this user only
        path = Path(folder) / "both.pem"
        path.write_bytes(certificate + key)
        context.load_cert_chain(path)


def _host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
