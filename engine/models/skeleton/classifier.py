"""A family whose head returns labels instead of tokens: `...ForSequenceClassification`.

hidden state of the prompt's last token [D]  --score.weight [labels, D]-->  logits [labels]
"""

from __future__ import annotations

from dataclasses import replace

from baton.core.labels import labels_of
from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.model_config import ModelConfig
from baton.engine.models.skeleton.family import Family

HEAD = {"head.weight": ("score.weight",)}


def classifying(family: Family) -> Family:
    def parse(keys: ConfigKeys) -> ModelConfig:
        described = {key: keys.value(key) for key in ("id2label", "num_labels")}
        return replace(
            family.parse(keys),
            num_labels=len(labels_of(described)),
            tie_word_embeddings=False,
            logit_softcap=None,
        )

    return replace(
        family,
        description=f"{family.description.partition(':')[0]}: with a head for labels",
        parse=parse,
        checkpoint={**family.checkpoint, **HEAD},
    )
