"""How the connections between Baton's own processes are secured: the `security` branch.

Every process reads the files on its own node. What they hold is never part of the configuration.
"""

from __future__ import annotations

from typing import Literal

from baton.core.config_node import ConfigNode


class SecurityConfig(ConfigNode, frozen=True, kw_only=True):
    tls_cert_file: str = ""
    """PEM certificate chain of this node's processes. Empty: replicas and gateways talk plain
    text."""
    tls_key_file: str = ""
    """PEM private key of the certificate."""
    tls_ca_file: str = ""
    """PEM certificates of the authority that vouches for all processes of this cluster."""
    require_client_cert: bool = True
    """Callers of a replica must have a certificate of the authority, too (mutual TLS)."""
    tls_server_name: str = "baton"
    """The name that all certificates bear, so that one fits replicas on any address."""
    token_file: str = ""
    """The cluster's token, without which no call between its processes is served. Empty: the
    variable BATON_CLUSTER_TOKEN, if it is set. Of several lines the first is sent, to who
    refuses it the next, and all are accepted."""
    default_token: Literal["auto", "ray", "permissive", "none"] = "auto"
    """The token where none is given. `ray`: one derived from Ray's own. `permissive`: the same is
    accepted, but not asked for. `none`: whoever reaches a replica's port is served. `auto`: `ray`
    where Ray itself asks for its token, else `none`."""

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
