"""The address by which D reached P, as the address where P listens for more of D's connections."""

from __future__ import annotations

import socket
from ipaddress import ip_address


def host_of(address: str) -> str:
    """The host of host:port or [host]:port."""
    return address.rpartition(":")[0].strip("[]")


def family_of(host: str) -> socket.AddressFamily:
    """The family of the address listened at, and so of the one to connect to: a name may have
    both."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def listen(host: str) -> socket.socket:
    """At a port that the system chooses.

    Raises OSError if `host` is not of this machine, or stands for all its addresses.
    """
    try:
        listener = socket.create_server((host, 0), family=family_of(host))
    except (ValueError, TypeError) as error:  # what can be no name, such as one with a NUL
        raise OSError(str(error)) from error
    at = listener.getsockname()[0]
    if ip_address(at).is_unspecified:  # the caller has not reached it there
        listener.close()
        raise OSError(f"{at} is every address of this machine")
    return listener
