"""The model types of this package, whose code is imported before one of them is loaded.

Transformers loads them without the code that is saved beside their weights, which nobody has to trust then.
"""

import importlib
import json
from pathlib import Path

# Module of each type. Those of `modeling_local` and `modeling_narrow` begin with LOCAL and NARROW: each has several.
MODULES = {
    "distill_bilm": "modeling_bilm",
    "distill_bilstm": "modeling_bilstm",
    "distill_chunked": "modeling_chunked",
    "distill_cnn": "modeling_cnn",
    "distill_feature_bilstm": "modeling_bilstm",
    "distill_mask_predict": "modeling_mask_predict",
    "distill_shared_albert": "modeling_shared_albert",
    "distill_static": "modeling_static",
    "distill_tfidf": "modeling_tfidf",
}
LOCAL, NARROW = "distill_local_", "distill_narrow_"


def register_architecture(directory: Path) -> None:
    """Registers the model of a directory with the auto classes if its type is one of this package's."""
    try:
        kind = str(json.loads((directory / "config.json").read_text(encoding="utf-8"))["model_type"])
    except (OSError, ValueError, KeyError, TypeError):
        return  # The loading that follows has the message.
    several = {LOCAL: "modeling_local", NARROW: "modeling_narrow"}
    module = next((name for prefix, name in several.items() if kind.startswith(prefix)), MODULES.get(kind))
    if module is not None:
        imported = importlib.import_module(f"distill.models.architectures.{module}")
        if kind.startswith(NARROW):
            imported.register_type(kind)
