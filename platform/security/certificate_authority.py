"""A private certificate authority that signs one certificate for all processes of a cluster.

authority --signs--> certificate with the cluster's server name, for servers and clients alike
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLOCK_SLACK = timedelta(minutes=5)
"""Tolerance for nodes whose clock is behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    certificate_pem: bytes
    key_pem: bytes


def make_authority(name: str, now: datetime, days: int) -> Issued:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _certificate(subject, subject, key.public_key(), now, days).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    return _issued(builder.sign(key, hashes.SHA256()), key)


def issue(authority: Issued, server_name: str, now: datetime, days: int) -> Issued:
    """A certificate of `authority` for any process of the cluster."""
    issuer = x509.load_pem_x509_certificate(authority.certificate_pem)
    issuer_key = load_pem_private_key(authority.key_pem, password=None)
    if not isinstance(issuer_key, ec.EllipticCurvePrivateKey):
        raise ValueError("the authority's key is not one that `make_authority` makes")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, server_name)])
    builder = _certificate(subject, issuer.subject, key.public_key(), now, days)
    for extension, is_critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage(signs_certificates=False), True),
        (x509.SubjectAlternativeName([x509.DNSName(server_name)]), False),
        (
            x509.ExtendedKeyUsage(
                [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            ),
            False,
        ),
    ):
        builder = builder.add_extension(extension, critical=is_critical)
    return _issued(builder.sign(issuer_key, hashes.SHA256()), key)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SLACK)
        .not_valid_after(now + timedelta(days=days))
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _issued(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Issued:
    return Issued(
        certificate_pem=certificate.public_bytes(Encoding.PEM),
        key_pem=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
