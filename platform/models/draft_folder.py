"""Finds the draft model or heads, and checks that they share the model's vocabulary."""

from __future__ import annotations

from pathlib import Path

from baton.core.errors import CheckpointError, InvalidConfig
from baton.platform.config.deployment import DEMO_MODEL, DeploymentConfig, override
from baton.platform.models.download import DownloadReport
from baton.platform.models.model_folder import (
    BUILT_IN,
    HEADS_OF_DEMO,
    built_in_folder,
    find_model,
)
from baton.platform.models.peers import Peers

DRAFTS = {
    "draft": "a smaller model of the same tokenizer",
    "eagle": "a head of EAGLE or EAGLE-3 that was trained for the model",
    "p-eagle": "a head of P-EAGLE, with `mask_hidden`, that was trained for the model",
    "medusa": "Medusa heads that were trained for the model",
}
"""The model that each speculation method needs."""
TOKENIZER = "tokenizer.json"


def with_draft(
    config: DeploymentConfig,
    folder: Path,
    *,
    wants_weights: bool = True,
    report: DownloadReport | None = None,
    peers: Peers | None = None,
) -> DeploymentConfig:
    """The configuration with the folder of the draft model or heads, if any, for the model in
    `folder`. Raises CheckpointError if it cannot be found, InvalidConfig if none is named, or if a
    token id has different tokens in the two models.
    """
    speculation = config.decode.speculation
    method, model = speculation.method, speculation.model
    if method not in DRAFTS:
        return config
    if model:
        draft = find_model(model, wants_weights=wants_weights, report=report, peers=peers)
    elif config.model == DEMO_MODEL and method in (*BUILT_IN, *HEADS_OF_DEMO):
        draft = built_in_folder(method)
    else:
        raise InvalidConfig(
            f"speculation.method {method} needs speculation.model (--draft-model): {DRAFTS[method]}"
        )
    _check_same_tokens(folder, draft, model)
    return override(config, {"decode.speculation.model": str(draft)})


def _check_same_tokens(folder: Path, draft: Path, name: str) -> None:
    """Skipped for models without a tokenizer."""
    files = folder / TOKENIZER, draft / TOKENIZER
    if not all(file.is_file() for file in files):
        return
    texts = [file.read_bytes() for file in files]
    if texts[0] == texts[1]:
        return
    known, drafted = (_tokens(file) for file in files)
    for number in sorted(known.keys() & drafted.keys()):
        if known[number] != drafted[number]:
            raise InvalidConfig(
                f"speculation.model {name}: its token {number} is {drafted[number]!r}, and the "
                f"model's is {known[number]!r}; take a draft model of the same tokenizer"
            )


def _tokens(file: Path) -> dict[int, str]:
    """Tokens of a vocabulary, by id."""
    from tokenizers import Tokenizer  # imported only with a draft model

    try:
        vocabulary = Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True)
    except Exception as error:  # what the library raises has no class of its own
        raise CheckpointError(f"{file} cannot be loaded: {error}") from error
    return {number: token for token, number in vocabulary.items()}
