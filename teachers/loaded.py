"""A model of transformers in memory, with its tokenizer, as the teacher."""

import copy
import hashlib
import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.models.loading import Start, load_directory
from distill.models.sentence_files import read_attributes, read_vocabulary, with_normalizers

from .pretrained import check_precision

# Entries that saving a model writes into its configuration.
_OF_SAVING = {"architectures", "dtype", "transformers_version"}


class Loaded:
    """Weights of a loaded model, which is not changed.

    Args:
        name: name of the teacher in records and directories.
        precision: precision of the forward passes, `float32`, `bfloat16` or `auto`.
    """

    is_new = False

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str = "loaded",
        precision: str = "float32",
    ) -> None:
        check_precision(precision)
        self.model, self.tokenizer, self.name, self.precision = model, tokenizer, name, precision
        # The code of a class that transformers does not include has run already, when the model was loaded.
        self.trust_remote_code = bool(getattr(model.config, "auto_map", None))

    def locate(self) -> None:
        """Does nothing, because the weights are in memory."""

    def resolved(self) -> str:
        """Returns the name in records."""
        return f"{self.name} ({type(self.model).__name__})"

    def fingerprint(self) -> str:
        """Returns a digest of configuration, tokenizer and weights, computed in every call because they may change."""
        config = json.loads(self.model.config.to_json_string())
        config = {name: config[name] for name in config.keys() - _OF_SAVING}
        digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
        digest.update(json.dumps(read_vocabulary(self.tokenizer)).encode())
        digest.update(json.dumps([type(self.model).__name__, read_attributes(self.tokenizer)]).encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().float().contiguous().numpy().data)
        return digest.hexdigest()

    def width(self) -> int:
        """Returns the size of the hidden states."""
        return int(self.model.config.hidden_size)

    def load(
        self, auto_class: str, labels: Sequence[str] | None, texts: Iterable[str], *, problem_type: str | None = None
    ) -> Start:
        """Returns a float32 copy of the model with a head for `labels`, or over the vocabulary, and its tokenizer."""
        options: dict[str, Any] = {"trust_remote_code": self.trust_remote_code, "problem_type": problem_type}
        tokenizer = copy.deepcopy(self.tokenizer)
        tokenizer.init_kwargs |= read_attributes(self.tokenizer)  # Attributes that were set later would not be saved.
        with tempfile.TemporaryDirectory() as directory:
            self.model.save_pretrained(directory)
            tokenizer.save_pretrained(directory)
            start = load_directory(Path(directory), auto_class, labels, **options)
            if read_vocabulary(start.tokenizer) == read_vocabulary(self.tokenizer):
                return start
            # The class makes its own normalizer when it is loaded, and this tokenizer was changed.
            with_normalizers(self.tokenizer, []).save_pretrained(directory)
            return load_directory(Path(directory), auto_class, labels, **options)
