"""Licences of teachers and data, by the identifiers of the Hub."""

import re
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import ModelCard

# Models and data sets that the YAML files name. A model in a directory has its licence in its model card.
MODELS = {
    "albert/albert-base-v2": "apache-2.0",
    "answerdotai/ModernBERT-base": "apache-2.0",
    "FacebookAI/roberta-base": "mit",
    "google-bert/bert-base-uncased": "apache-2.0",
    "google-bert/bert-large-uncased": "apache-2.0",
    "google/electra-base-discriminator": "apache-2.0",
    "microsoft/deberta-v3-small": "mit",
    "sentence-transformers/all-MiniLM-L6-v2": "apache-2.0",
}
DATA = {
    "allenai/ai2_arc": "cc-by-sa-4.0",
    "nyu-mll/glue": "other",
    "rajpurkar/squad": "cc-by-sa-4.0",
    "rajpurkar/squad_v2": "cc-by-sa-4.0",
    "Rowan/hellaswag": "mit",
    "tau/commonsense_qa": "mit",
}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def is_on_hub(model: str) -> bool:
    """Returns whether a teacher's name in a record is an id of the Hub and no directory."""
    return _HUB_ID.fullmatch(model) is not None and not Path(model).expanduser().exists()


def find_model_license(model: str) -> str | None:
    """Returns the licence of a teacher, by its id or in the model card of its directory; None if it is not known."""
    card = Path(model).expanduser() / "README.md"
    if not card.is_file():
        return MODELS.get(model)
    try:
        found = ModelCard.load(card, ignore_metadata_errors=True).data.license
    except (OSError, ValueError, TypeError):  # Of a card that is damaged or without metadata.
        return None
    return found if isinstance(found, str) else None


def find_data_license(hub_id: str | None) -> str | None:
    """Returns the licence of a data set `owner/name[@revision][:configuration]`; None if it is not known."""
    return DATA.get(re.split("[@:]", hub_id or "")[0])


def join_licenses(licenses: Sequence[str | None]) -> str | None:
    """Returns the licence that all of several models have; None if they differ or one is not known."""
    return licenses[0] if licenses and len(set(licenses)) == 1 else None
