"""Stored responses: each with its whole input, earlier turns included, and its answer.

A turn needs only the one before it; earlier ones may have expired or been deleted. An item's id
contains its response's id, so that a client may refer to it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from baton.core.errors import InvalidRequest, NotKept, StorageFull, StorageUnavailable
from baton.gateway.http.responses.answer import ID_PREFIX, ResponseAnswer
from baton.gateway.http.responses.input import InputItem
from baton.gateway.requests.gateway import Gateway
from baton.gateway.storage.folder import Place
from baton.gateway.storage.storage import Storage

log = logging.getLogger(__name__)

KIND = "response"
REFERRED = re.compile(r"(?:msg|rs|fc|ctc)_(?P<base>.+)_(?P<index>[0-9]{1,4})")
MAX_REFERRED = 256
"""Responses that one request may refer to; each is read from storage."""
ITEM_PREFIXES = {
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}


class KeptResponse(msgspec.Struct, frozen=True):
    answer: msgspec.Raw
    """The answer as it was sent."""
    input: msgspec.Raw
    """Items."""

    @property
    def is_in_progress(self) -> bool:
        return msgspec.json.decode(self.answer, type=_Progress).status == "in_progress"

    @property
    def is_background(self) -> bool:
        return msgspec.json.decode(self.answer, type=_Progress).background

    def input_items(self) -> list[InputItem]:
        return msgspec.json.decode(self.input, type=list[dict[str, Any]])

    def output_items(self) -> list[InputItem]:
        return msgspec.json.decode(self.answer, type=_Output).output

    def changed(self, **changes: object) -> KeptResponse:
        """The same with other values of some fields of its answer."""
        answer = {**msgspec.json.decode(self.answer), **changes}
        return KeptResponse(msgspec.Raw(msgspec.json.encode(answer)), self.input)

    def context(self) -> list[InputItem]:
        """The context of the next turn, without calls that were cut short."""
        output = self.output_items()
        return [*self.input_items(), *(item for item in output if not _is_cut_call(item))]


class _Output(msgspec.Struct):
    output: list[dict[str, Any]]


class _Progress(msgspec.Struct):
    status: str
    background: bool = False


class KeptResponses:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._is_full = False

    @property
    def is_possible(self) -> bool:
        return self._gateway.storage is not None

    @property
    def storage(self) -> Storage:
        storage = self._gateway.storage
        assert storage is not None, "something is kept there"
        return storage

    async def find(self, response_id: str, owner: str, field: str) -> KeptResponse:
        """Raises NotKept, StorageUnavailable."""
        kept = await self.look(Place(KIND, owner, response_id)) if self.is_possible else None
        if kept is None:
            raise self._not_kept(response_id, field)
        return kept

    async def look(self, place: Place) -> KeptResponse | None:
        """The stored response; None if it is gone. Raises StorageUnavailable."""
        return _kept(await self.storage.get(place))

    async def end(
        self, place: Place, ended: Callable[[KeptResponse], KeptResponse]
    ) -> KeptResponse | None:
        """Store `ended` if the response is in progress: the first end holds. Return what is stored
        then; None if it is gone. Raises StorageFull, StorageUnavailable."""

        def changed(data: bytes | None) -> bytes | None:
            kept = _kept(data)
            if kept is None or not kept.is_in_progress:
                return None
            return msgspec.json.encode(ended(kept))

        ttl_s = self._gateway.config.storage.response_ttl_s
        return _kept(await self.storage.change(place, changed, ttl_s=ttl_s, evicts=True))

    async def delete(self, response_id: str, owner: str, field: str) -> None:
        """Raises NotKept, StorageUnavailable."""
        storage = self._gateway.storage
        if storage is None or not await storage.delete(Place(KIND, owner, response_id)):
            raise self._not_kept(response_id, field)

    async def keep(self, answer: ResponseAnswer, given: Sequence[InputItem], owner: str) -> bool:
        """Store an answer; return whether that worked. If not, the log says why. `given`: its whole
        input."""
        if not self.is_possible:
            return False
        try:
            await self.put(answer, given, owner)
        except StorageUnavailable:
            return False
        except StorageFull as error:
            if not self._is_full:
                log.warning("responses are not kept: %s", error)
            self._is_full = True
            return False
        self._is_full = False
        return True

    async def put(self, answer: ResponseAnswer, given: Sequence[InputItem], owner: str) -> None:
        """Raises StorageFull, StorageUnavailable."""
        value = msgspec.json.encode(kept_response(answer, given))
        ttl_s = self._gateway.config.storage.response_ttl_s
        place = Place(KIND, owner, answer.id)
        await self.storage.put(place, value, ttl_s=ttl_s, evicts=True)

    async def with_referred(self, given: Sequence[InputItem], owner: str) -> list[InputItem]:
        """The input with item references resolved. Raises NotKept,
        InvalidRequest, StorageUnavailable."""
        items: list[InputItem] = []
        outputs: dict[str, list[InputItem]] = {}
        for index, item in enumerate(given):
            if not _is_reference(item):
                items.append(item)
                continue
            path = f"input[{index}]"
            found = REFERRED.fullmatch(str(item.get("id")))
            if found is None:
                raise NotKept(
                    f"{path} does not refer to an item of a stored response; send the item itself",
                    field=path,
                )
            response_id = f"{ID_PREFIX}{found['base']}"
            if response_id not in outputs:
                if len(outputs) == MAX_REFERRED:
                    raise InvalidRequest(
                        f"{path} refers to items of more than {MAX_REFERRED} responses; use "
                        "previous_response_id, or send the items",
                        field=path,
                    )
                kept = await self.find(response_id, owner, path)
                outputs[response_id] = kept.output_items()
            output = outputs[response_id]
            number = int(found["index"])
            if number >= len(output) or output[number].get("id") != item["id"]:
                raise NotKept(f"{path}: {response_id} has no such item", field=path)
            items.append(output[number])
        return items

    def _not_kept(self, response_id: str, field: str) -> NotKept:
        if not self.is_possible:
            remedy = (
                "nothing is kept here (gateway.storage); send the conversation as items of input"
            )
        else:
            remedy = (
                "it was sent with store: false, has expired, was deleted or made room for others, "
                "or a gateway of another node kept it. Gateways of several nodes find each other's "
                "responses if gateway.storage.folder is one that all of them mount; otherwise send "
                "the conversation as items of input"
            )
        return NotKept(f"no response {response_id[:200]!r} of yours is kept: {remedy}", field=field)


def kept_response(answer: ResponseAnswer, given: Sequence[InputItem]) -> KeptResponse:
    """`given`: its whole input."""
    encode = msgspec.json.encode
    return KeptResponse(msgspec.Raw(encode(answer)), msgspec.Raw(encode(given)))


def _kept(data: bytes | None) -> KeptResponse | None:
    try:
        return None if data is None else msgspec.json.decode(data, type=KeptResponse)
    except msgspec.DecodeError:  # stored by another version
        return None


def named_items(given: str | Sequence[InputItem], base: str) -> list[InputItem]:
    """The items of `given` as the API lists them: with ids made of `base`, and texts as parts."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return list(_named(given, base))


def _named(given: Sequence[InputItem], base: str) -> Iterator[InputItem]:
    for index, item in enumerate(given):
        kind = item.get("type", "message")
        item_id = item.get("id") or f"{ITEM_PREFIXES.get(kind, 'msg')}_{base}_in{index}"
        named = {**item, "type": kind, "id": item_id}
        if kind == "message" and isinstance(text := item.get("content"), str):
            part = "output_text" if item.get("role") == "assistant" else "input_text"
            named["content"] = [{"type": part, "text": text}]
        yield named


def _is_reference(item: InputItem) -> bool:
    return item.get("type") == "item_reference" or (
        item.get("type") is None and isinstance(item.get("id"), str) and "role" not in item
    )


def _is_cut_call(item: InputItem) -> bool:
    return (
        item.get("type") in ("function_call", "custom_tool_call")
        and item.get("status") == "incomplete"
    )
