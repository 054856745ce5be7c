"""A folder of any file system that fsspec knows: s3://, gs://, az://, hdfs://, file://, ...

The drivers are separate packages (s3fs, gcsfs, adlfs, ...), which take credentials and endpoints
from the environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from baton.core.errors import CheckpointError
from baton.gateway.text.model_files import ADDITIONAL_TEMPLATES
from baton.platform.config.model_url import scheme_of
from baton.platform.models.listing import (
    SUMS,
    Listing,
    RemoteFile,
    choose_files,
    list_files,
    parse_sums,
)
from baton.platform.models.origins.origin import CHUNK_BYTES, OriginUnreachable

NUM_AT_ONCE = 8
"""Files that are asked after."""
ETAGS = ("ETag", "etag", "md5Hash", "content_md5", "version_id", "mtime", "LastModified", "created")
"""File systems' keys for an ETag; the first present one is used."""
NEVER = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError, ValueError)


class FileSystemFolder:
    def __init__(self, url: str) -> None:
        self.name = url.rstrip("/")
        self._fs, self._root = _file_system(self.name)

    def look(self) -> Listing:
        try:
            names = self._names()
            sums = self._sums() if SUMS in names else {}
            self._fs.invalidate_cache()
            with ThreadPoolExecutor(NUM_AT_ONCE) as threads:
                facts = list(threads.map(self._fact, choose_files(names, wants_weights=True)))
        except Exception as error:  # each file system raises what its own library raises
            raise _told(self.name, error) from error
        return list_files(
            self.name,
            [RemoteFile(name, size, sums.get(name, ""), etag) for name, size, etag in facts],
        )

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        path = f"{self._root}/{file.name}"
        try:
            with self._fs.open(path, "rb", cache_type="none", block_size=CHUNK_BYTES) as stream:
                stream.seek(start)
                while piece := stream.read(min(CHUNK_BYTES, file.size - start)):
                    start += len(piece)
                    yield piece
            self._fs.invalidate_cache()
            fact = self._fact(file.name)
        except Exception as error:
            raise _told(f"{self.name}/{file.name}", error) from error
        if fact != (file.name, file.size, file.etag):
            raise CheckpointError(
                f"{self.name}/{file.name} changed while it was fetched; start again for what is "
                "there"
            )

    def _fact(self, name: str) -> tuple[str, int, str]:
        """Name, size and ETag of a file, always by the same call: a directory listing may report
        other values."""
        info = self._fs.info(f"{self._root}/{name}")
        return name, int(info["size"] or 0), _etag(info)

    def _names(self) -> list[str]:
        entries = self._fs.ls(self._root, detail=True)
        names = list(map(_name, entries))
        for entry in entries:
            path = str(entry["name"]).rstrip("/")
            is_folder = entry.get("type") == "directory"
            if is_folder and path.rpartition("/")[2] == ADDITIONAL_TEMPLATES:
                inner = map(_name, self._fs.ls(path, detail=True))
                names += [f"{ADDITIONAL_TEMPLATES}/{name}" for name in inner]
        return sorted(names)

    def _sums(self) -> dict[str, str]:
        return parse_sums(self._fs.cat_file(f"{self._root}/{SUMS}").decode(errors="replace"))


def _file_system(url: str) -> tuple[Any, str]:
    import fsspec

    try:
        fs, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise CheckpointError(
            f"{url}: {error}; install the driver on every node (for s3:// `pip install s3fs`, for "
            "gs:// `pip install gcsfs`)"
        ) from error
    except Exception as error:
        raise CheckpointError(
            f"{url}: {scheme_of(url)}:// cannot be opened: {error}; give a model folder, a Hugging "
            "Face id (org/name) or a URL that fsspec knows"
        ) from error
    return fs, str(root)


def _name(info: dict[str, Any]) -> str:
    return "" if info.get("type") == "directory" else str(info["name"]).rpartition("/")[2]


def _etag(info: dict[str, Any]) -> str:
    for key in ETAGS:
        value = info.get(key)
        if value is not None:
            return str(value.timestamp() if isinstance(value, datetime) else value)
    return ""


def _told(what: str, error: Exception) -> Exception:
    if isinstance(error, NEVER) or type(error).__name__.endswith("CredentialsError"):
        reason = f"{type(error).__name__}: {error}"
        return CheckpointError(
            f"{what}: {reason}; correct the URL, or the credentials in the environment of the nodes"
        )
    return OriginUnreachable(f"{what}: {error!r}")
