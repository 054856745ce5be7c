"""Which names of models are URLs, and what may not stand in one.

hf://org/name@revision      https://host/folder      s3://bucket/prefix      any of fsspec's
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


def scheme_of(model: str) -> str:
    """Empty for what is no URL."""
    found = _SCHEME.match(model)
    return found[1].lower() if found else ""


def why_no_model_url(model: str) -> str:
    """What is wrong with it, and the remedy; empty if nothing is, or if it is no URL.

    Ray keeps and shows what applications are made of, and every log names the model.
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
