"""A folder on a web server; its files are requested by name, without a listing.

    SHA256SUMS, if it is there, says which files there are, and what they are held to
    else           config.json and its like by name; weights by model.safetensors.index.json

Downloads resume with Range and If-Range. The answer of a server without ranges is skipped up to the
offset; one that sends an unspecified part is asked for the whole file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from urllib.parse import quote

from baton.core.errors import CheckpointError
from baton.platform.models.listing import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    CONFIG,
    SAFE,
    SUMS,
    Listing,
    RemoteFile,
    choose_files,
    list_files,
    parse_sums,
    shards_of,
)
from baton.platform.models.origins.origin import OriginUnreachable
from baton.platform.models.origins.web import HIDDEN, NOT_THERE, Answer, ask
from baton.platform.models.origins.web_token import token_headers

NUM_AT_ONCE = 8
INDEX = f"{SAFE}.index.json"
OPTIONAL = (
    "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "chat_template.jinja", "chat_template.json", INDEX,
)  # fmt: skip
"""What a model's folder may hold beside its configuration and weights."""
MAX_TEXT_BYTES = 64 << 20
"""Most bytes of SHA256SUMS and of an index."""


class WebFolder:
    def __init__(self, url: str, *, is_adapter: bool = False) -> None:
        """`is_adapter`: the folder of an adapter, not of a model."""
        self.name = url.rstrip("/")
        self._is_adapter = is_adapter
        self._headers = token_headers(self.name)

    def look(self) -> Listing:
        sums = parse_sums(self._text(SUMS, HIDDEN).decode(errors="replace"))
        if sums:
            files = self._facts(choose_files(sums, wants_weights=True))
            gone = sorted(set(choose_files(sums, wants_weights=True)) - {one.name for one in files})
            if gone:
                raise CheckpointError(f"{self.name}/{SUMS} names {gone[0]}, which is not there")
            files = [RemoteFile(one.name, one.size, sums[one.name], one.etag) for one in files]
            return list_files(self.name, files)
        if self._is_adapter:
            files = self._facts((ADAPTER_CONFIG,))
            return list_files(self.name, [*files, *self._facts(ADAPTER_WEIGHTS, HIDDEN)])
        files = self._facts((CONFIG,))  # without access to it, all access is denied
        files += self._facts(OPTIONAL, HIDDEN)
        if any(file.name == INDEX for file in files):
            shards = shards_of(self._text(INDEX))
            found = self._facts(shards)
            if lacking := sorted(set(shards) - {one.name for one in found}):
                raise CheckpointError(f"{self.name}/{INDEX} names {lacking[0]}, which is not there")
            return list_files(self.name, [*files, *found])
        return list_files(self.name, [*files, *self._facts((SAFE,))])

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        return read_from(self._url(file.name), file, start, self._headers)

    def _facts(
        self, names: Sequence[str], lacking: Collection[int] = NOT_THERE
    ) -> list[RemoteFile]:
        """Size and ETag of the files that are there."""
        with ThreadPoolExecutor(NUM_AT_ONCE) as threads:
            facts = threads.map(self._fact, names, repeat(lacking))
            return [file for file in facts if file is not None]

    def _fact(self, name: str, lacking: Collection[int]) -> RemoteFile | None:
        with ask(self._url(name), self._headers, method="HEAD", lacking=lacking) as answer:
            if answer is None:
                return None
            size = answer.size
        if size is None:
            raise CheckpointError(
                f"{self.name}/{name}: the server does not say how long it is (Content-Length); "
                "serve the folder as files"
            )
        return RemoteFile(name, size, etag=answer.validator)

    def _text(self, name: str, lacking: Collection[int] = NOT_THERE) -> bytes:
        """Empty if there is none."""
        with ask(self._url(name), self._headers, lacking=lacking) as answer:
            return b"" if answer is None else b"".join(answer.pieces(MAX_TEXT_BYTES))

    def _url(self, name: str) -> str:
        return f"{self.name}/{quote(name)}"


def read_from(
    url: str, file: RemoteFile, start: int, headers: Mapping[str, str]
) -> Iterator[bytes]:
    """The bytes of `url` from `start` on. Raises what origins raise."""
    for part in (_range(file, start), {}):
        with ask(url, {**headers, **part}) as answer:
            assert answer is not None, "what is lacking raises"
            if answer.is_placed:
                _check_same(url, file, answer)
                yield from answer.from_byte(start)
                return
    raise OriginUnreachable(f"{url} answers a part without saying which, where all was asked for")


def _range(file: RemoteFile, start: int) -> dict[str, str]:
    """Headers for the bytes from `start` on, if the file is unchanged."""
    if not start:
        return {}
    is_held_to = file.etag and not file.etag.startswith("W/")
    return {"Range": f"bytes={start}-"} | ({"If-Range": file.etag} if is_held_to else {})


def _check_same(url: str, file: RemoteFile, answer: Answer) -> None:
    found = answer.validator
    if (answer.size not in (None, file.size)) or (file.etag and found and found != file.etag):
        raise CheckpointError(f"{url} changed while it was fetched; start again for what is there")
