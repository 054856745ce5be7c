"""The model that a gateway serves: its names, tokenizer and templates."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from baton.core.errors import InvalidRequest
from baton.gateway.text.chat_template import ChatTemplate
from baton.gateway.text.chat_templates import ChatTemplates
from baton.gateway.text.classifier import Classifier
from baton.gateway.text.model_files import ModelFiles, SamplingDefaults
from baton.gateway.text.pooling_files import PoolingFiles
from baton.gateway.text.tokenizer import TextTokenizer

NO_ADAPTERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    name: str
    tokenizer: TextTokenizer
    chat_templates: ChatTemplates
    sampling: SamplingDefaults
    vocab_size: int
    context_len: int
    eos_token_ids: tuple[int, ...] = ()
    generates: bool = True
    """Whether it generates text; else it has a classifier head."""
    classifier: Classifier | None = None
    pooling: PoolingFiles = field(default_factory=PoolingFiles)
    """Its authors' settings for pooling."""
    aliases: tuple[str, ...] = ()
    """Other names by which requests may ask for it."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """LoRA adapters, by the names by which requests ask for the model with one of them; each with
    its folder, id or URL."""
    created: int = field(default_factory=lambda: int(time.time()))
    """Unix seconds."""

    @classmethod
    def load(  # noqa: PLR0913 - one parameter a setting
        cls,
        folder: Path,
        name: str,
        *,
        aliases: tuple[str, ...] = (),
        adapters: Mapping[str, str] = NO_ADAPTERS,
        needs_tokenizer: bool = True,
        reranker: str = "auto",
        chat_template: str = "",
    ) -> ServedModel:
        """`reranker`, `chat_template`: as the configuration has them.

        Raises CheckpointError, naming the file, if the folder is incomplete or broken, and
        InvalidConfig if `reranker` or `chat_template` does not fit the model.
        """
        files = ModelFiles.read(folder, needs_tokenizer=needs_tokenizer)
        files = replace(files, pooling=files.pooling.judging_as(reranker))
        tokenizer = TextTokenizer(files.tokenizer_json)
        return cls(
            name=name,
            aliases=aliases,
            adapters=adapters,
            tokenizer=tokenizer,
            chat_templates=ChatTemplates.compile(
                files.chat_templates, files.special_tokens, instead=chat_template
            ),
            sampling=files.sampling,
            vocab_size=files.vocab_size,
            context_len=files.context_len,
            eos_token_ids=files.eos_token_ids,
            generates=files.pooling.labels is None,
            classifier=Classifier.of(files, tokenizer),
            pooling=files.pooling,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Its names; the first is its own. Adapters are models of their own to clients."""
        return tuple(dict.fromkeys((self.name, *self.aliases)))

    def named(self, adapter: str) -> str:
        """The name in the answers to requests with that adapter; empty: without."""
        return adapter or self.name

    def root_of(self, name: str) -> str:
        """What is served under one of its names: the model itself, or an adapter's place."""
        return self.adapters.get(name, self.name)

    def parent_of(self, name: str) -> str | None:
        """The model that is adapted, for the name of an adapter."""
        return self.name if name in self.adapters else None

    def check_generates(self) -> None:
        """Raises InvalidRequest."""
        if not self.generates:
            raise InvalidRequest(
                f"`{self.name}` is a classifier and generates no text; use /v1/classify, or "
                "/v1/score and /v1/rerank if it has one label",
                field="model",
            )

    def require_chat_template(self, *, has_tools: bool = False) -> ChatTemplate:
        """The template for conversations, or for those with tools. Raises InvalidRequest if there
        is none."""
        template = self.chat_templates.choose(has_tools=has_tools)
        if template is not None:
            return template
        self.check_generates()
        if names := ", ".join(self.chat_templates.by_name):
            raise InvalidRequest(
                f"`{self.name}` has chat templates for special uses alone; name one in "
                f"chat_template ({names}), or use /v1/completions",
                field="chat_template",
            )
        raise InvalidRequest(
            f"`{self.name}` has no chat template; use /v1/completions, or have its operator set "
            "gateway.chat_template (--chat-template)",
            field="messages",
        )
