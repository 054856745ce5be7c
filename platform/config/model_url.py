"""Models given as URLs, and what such a URL may not contain.

hf://org/name@revision      https://host/folder      s3://bucket/prefix      any of fsspec's
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


def scheme_of(model: str) -> str:
    """The URL's scheme; empty if `model` is no URL."""
    found = _SCHEME.match(model)
    return found[1].lower() if found else ""


def why_no_model_url(model: str) -> str:
    """What is wrong with a URL, and the remedy; empty if nothing is, or if it is no URL. Secrets in
    it are refused, since Ray stores and shows it, and logs name the model.
    """
    scheme = scheme_of(model)
    if not scheme:
        return ""
    try:
        parts = urlsplit(model)
    except ValueError as error:
        return f"{model!r} is no URL: {error}"
    if parts.password is not None or (parts.username is not None and scheme != "hf"):
        return (
            f"a {scheme}:// URL holds a name or password; give it without, and the credentials in "
            "the environment of the nodes (docs/operating/models.md)"
        )
    if parts.query or parts.fragment or ("?" in model) or ("#" in model):
        return (
            f"a {scheme}:// URL ends in a query or a fragment; give that of a folder, and "
            "credentials in the environment of the nodes (docs/operating/models.md)"
        )
    if not model[len(scheme) + 3 :].strip("/"):
        return f"{model!r} names nothing; give the URL of a model's folder"
    return ""
