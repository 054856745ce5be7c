"""Checks that certificate, key and authority fit together, before a handshake fails.

gRPC would only report a closed connection for most of these faults.
"""

from __future__ import annotations

from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from baton.core.errors import InvalidConfig
from baton.core.wire_security import WireSecurity


def check_identity(security: WireSecurity, now: datetime) -> None:
    """Raises InvalidConfig, naming the setting at fault and the remedy."""
    chain = _certificates("security.tls_cert_file", security.certificate_pem)
    authorities = _certificates("security.tls_ca_file", security.authority_pem)
    own = chain[0]
    if _public_bytes(_key(security.key_pem)) != _public_bytes(own.public_key()):
        raise InvalidConfig(
            "security.tls_key_file is not the key of the certificate in security.tls_cert_file"
        )
    _check_time(own, now)
    _check_names(own, security.server_name)
    _check_uses(own, checks_clients=security.checks_clients)
    if not any(_vouches(authority, one) for one in chain for authority in authorities):
        raise InvalidConfig(
            "security.tls_cert_file is not signed by an authority in security.tls_ca_file: "
            "no other process would trust it"
        )


def expires_at(certificate_pem: bytes) -> datetime:
    return x509.load_pem_x509_certificate(certificate_pem).not_valid_after_utc


def _certificates(setting: str, pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise InvalidConfig(f"{setting} holds no PEM certificates: {error}") from error


def _key(pem: bytes) -> CertificatePublicKeyTypes:
    try:
        return load_pem_private_key(pem, password=None).public_key()  # type: ignore[return-value]
    except TypeError as error:
        raise InvalidConfig(
            "security.tls_key_file is encrypted; give the key without a passphrase"
        ) from error
    except ValueError as error:
        raise InvalidConfig(f"security.tls_key_file holds no PEM private key: {error}") from error


def _public_bytes(key: CertificatePublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _check_time(own: x509.Certificate, now: datetime) -> None:
    if now > own.not_valid_after_utc:
        raise InvalidConfig(
            f"the certificate in security.tls_cert_file expired on {own.not_valid_after_utc}; "
            "renew it"
        )
    if now < own.not_valid_before_utc:
        raise InvalidConfig(
            "the certificate in security.tls_cert_file is not valid before "
            f"{own.not_valid_before_utc}; set this node's clock"
        )


def _check_names(own: x509.Certificate, server_name: str) -> None:
    try:
        names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        found = names.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        found = []
    wildcard = f"*.{server_name.partition('.')[2]}"
    if server_name.lower() not in map(str.lower, found) and wildcard not in found:
        raise InvalidConfig(
            f"the certificate in security.tls_cert_file does not bear the name {server_name!r}, "
            f"but {', '.join(found) or 'no DNS name'}; set security.tls_server_name to one it "
            "bears, or issue another"
        )


def _check_uses(own: x509.Certificate, *, checks_clients: bool) -> None:
    try:
        uses = set(own.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        return  # any use is allowed
    wanted = {ExtendedKeyUsageOID.SERVER_AUTH: "server"}
    if checks_clients:
        wanted[ExtendedKeyUsageOID.CLIENT_AUTH] = "client"
    missing = [name for use, name in wanted.items() if use not in uses]
    if missing:
        raise InvalidConfig(
            "the certificate in security.tls_cert_file must not be used for "
            f"{' or '.join(missing)} authentication; issue one for both, or set "
            "security.require_client_cert to false if only clients' use is missing"
        )


def _vouches(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    if authority == certificate:
        return True
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
