"""Security of the connections between Baton's own processes: the `security` branch.

Every process reads the files on its own node. Their contents are never part of the configuration.
"""

from __future__ import annotations

from typing import Literal

from baton.core.config_node import ConfigNode


class SecurityConfig(ConfigNode, frozen=True, kw_only=True):
    tls_cert_file: str = ""
    """PEM certificate chain of this node's processes. Empty: no TLS between replicas and
    gateways."""
    tls_key_file: str = ""
    """PEM private key of the certificate."""
    tls_ca_file: str = ""
    """PEM certificates of the authority that signs the certificates of all processes."""
    require_client_cert: bool = True
    """Require a certificate of the authority from callers of a replica, too (mutual TLS)."""
    tls_server_name: str = "baton"
    """The DNS name in all certificates, so that one certificate fits any address."""
    token_file: str = ""
    """A file with the cluster's token, which every call between its processes needs. Empty: the
    variable BATON_CLUSTER_TOKEN, if it is set. Of several lines all are accepted; the first is
    sent, and the next if that is refused, so that a token can be rotated."""
    default_token: Literal["auto", "ray", "permissive", "none"] = "auto"
    """The token where none is given. `ray`: one derived from Ray's own. `permissive`: that one is
    accepted, but not required. `none`: any process that reaches a replica's port is served. `auto`:
    `ray` if Ray uses token authentication, else `none`."""

    def __post_init__(self) -> None:
        files = (self.tls_cert_file, self.tls_key_file, self.tls_ca_file)
        if any(files) and not all(files):
            raise ValueError(
                "tls_cert_file, tls_key_file and tls_ca_file belong together: set all, or none"
            )
        if not self.tls_server_name:
            raise ValueError("tls_server_name must not be empty; `baton` is the default")

    @property
    def is_encrypted(self) -> bool:
        return bool(self.tls_cert_file)
