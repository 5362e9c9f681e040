"""The vectors of a static student as a directory of model2vec, which sentence-transformers reads too."""

import copy
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.errors import UserError
from distill.models.modeling_static import StaticPreTrainedModel
from distill.models.pooling import vector_settings
from distill.storage.files import make_directory, write_json, write_text

_MODULES = "sentence_transformers.models"


def check_model2vec(model: PreTrainedModel, name: str) -> None:
    """Raises UserError for a student whose vectors model2vec cannot compute.

    Args:
        name: of the student.
    """
    if not isinstance(model, StaticPreTrainedModel):
        raise UserError(
            f"export.model2vec=true is for a table of vectors, and student {name} is a {type(model).__name__}: take "
            "+student=static, or leave out export.model2vec"
        )
    if buckets := model.config.buckets:
        raise UserError(
            f"export.model2vec=true is for vectors of single pieces, and the student has student.buckets={buckets} of "
            "two pieces, which model2vec does not read: set student.buckets=0, or leave out export.model2vec"
        )


@torch.no_grad()
def write_model2vec(
    directory: Path, model: StaticPreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, max_length: int
) -> None:
    """Writes config.json, tokenizer.json, model.safetensors and modules.json.

    Their vectors are those of the student, but that sentence-transformers counts unknown pieces in the mean, which
    changes no direction.

    Args:
        max_length: tokens that a text is cut to, special ones among them.
    """
    settings = vector_settings(model.config)
    normalize = settings is not None and settings["normalize"]
    pieces = len(tokenizer)
    table = model.embeddings.weight * model.weights.weight * model.counted[:, None]
    save_file({"embeddings": table[:pieces].float().cpu().contiguous()}, directory / "model.safetensors")
    backend = copy.deepcopy(tokenizer.backend_tokenizer)  # type: ignore[attr-defined]
    backend.no_truncation()
    backend.no_padding()
    backend.save(str(directory / "tokenizer.json"))
    length = max_length - tokenizer.num_special_tokens_to_add()
    write_json(directory / "config.json", {
        "model_type": "model2vec", "architectures": ["StaticModel"], "hidden_dim": model.config.embedding_dim,
        "seq_length": length, "max_length": length, "normalize": normalize, "embedding_dtype": "float32",
    })  # fmt: skip
    modules = [{"idx": 0, "name": "0", "path": ".", "type": f"{_MODULES}.StaticEmbedding"}]
    if normalize:
        modules.append({"idx": 1, "name": "1", "path": "1_Normalize", "type": f"{_MODULES}.Normalize"})
        make_directory(directory / "1_Normalize")
    write_text(directory / "modules.json", json.dumps(modules, indent=2) + "\n")
