"""Typed access to the keys of `config.json`; each error names its key.

Families have their own names for some keys (`n_embd` for `hidden_size`): code uses the common name,
errors the family's. An absent key has the family's default, if there is one; a null key has the
common default.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from baton.core.errors import CheckpointError
from baton.engine.models.config.description import unsupported, wrong


class ConfigKeys:
    def __init__(
        self,
        raw: Mapping[str, object],
        *,
        names: Mapping[str, str] | None = None,
        defaults: Mapping[str, object] | None = None,
        path: str = "",
    ) -> None:
        """`names` maps customary names to the family's; `defaults` are by the family's names.

        `path` is where in `config.json` the keys are, for complaints: "quantization_config.".
        """
        self._values = {**(defaults or {}), **raw}
        self._names = names or {}
        self._path = path

    def with_default(self, key: str, value: object) -> ConfigKeys:
        """These keys with `key` set to `value` if it is absent or null."""
        if self.value(key) is not None:
            return self
        values = {**self._values, self._own(key): value}
        return ConfigKeys(values, names=self._names, path=self._path)

    def name(self, key: str) -> str:
        return self._path + self._own(key)

    def _own(self, key: str) -> str:
        return self._names.get(key, key)

    def value(self, key: str, default: object = None) -> object:
        found = self._values.get(self._own(key))
        return default if found is None else found

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        value = self.value(key, default)
        if value is None:
            raise wrong(f"`{self.name(key)}` is missing")
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            what = "a positive integer" if least == 1 else f"at least {least}"
            raise self.complaint(key, f"must be {what}")
        return value

    def optional_count(self, key: str) -> int | None:
        return None if self.value(key) is None else self.count(key)

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.value(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise self.complaint(key, "must be a positive number")
        return float(value)

    def optional_positive(self, key: str) -> float | None:
        return None if self.value(key) is None else self.positive(key)

    def flag(self, key: str, default: bool) -> bool:
        value = self.value(key, default)
        if not isinstance(value, bool):
            raise self.complaint(key, "must be true or false")
        return value

    def choice(self, key: str, options: Collection[str], default: str | None = None) -> str:
        value = self.value(key, default)
        if value not in options:
            raise unsupported(
                f"`{self.name(key)}` is {value!r}; supported is " + " or ".join(map(repr, options))
            )
        return str(value)

    def refuse_unsupported(self, must_be: Mapping[str, tuple[object, ...]]) -> None:
        """Raise CheckpointError if a present key has a value that is not implemented."""
        for key, supported in must_be.items():
            if key in self._values and self._values[key] not in supported:
                raise unsupported(
                    f"`{key}` is {self._values[key]!r}; supported is {supported[0]!r}"
                )

    def complaint(self, key: str, what: str) -> CheckpointError:
        return wrong(f"`{self.name(key)}` {what}, not {self.value(key)!r}")
