"""A bidirectional language model of one-way LSTMs with random weights and a new vocabulary, or a trained one."""

import hashlib
import inspect
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
import transformers

from distill.errors import OptionError, UserError
from distill.models.loading import Start, default_problem_type
from distill.models.modeling_bilm import BilmConfig
from distill.models.padding import choose_padding_side

from .embedded import Embedded
from .pretrained import Pretrained


class NewBilm:
    """A bidirectional language model (arXiv 1802.05365) with random weights, to be trained before it teaches.

    Args:
        layers: number of layers of each direction.
        hidden_dim: width of the embeddings and of each direction.
        vocabulary: largest number of WordPiece tokens, trained on the task's training texts.
        tokenizer: a directory with a tokenizer to use instead of a new one.
        precision: precision of the forward passes, `float32` or `bfloat16`.
        seed: seed of the weights.

    Raises:
        OptionError: for a size below 1 or a share out of range.
    """

    is_new = True
    trust_remote_code = False

    def __init__(
        self,
        *,
        name: str = "bilm",
        layers: int = 2,
        hidden_dim: int = 256,
        vocabulary: int = 8000,
        tokenizer: str | None = None,
        dropout: float = 0.1,
        precision: str = "float32",
        seed: int = 0,
    ) -> None:
        for option, size in (("layers", layers), ("hidden_dim", hidden_dim)):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise OptionError(f"teacher.{option}", str(size), "a whole number of at least 1")
        if not 0 <= dropout < 1:
            raise OptionError("teacher.dropout", str(dropout), "a share from 0 to below 1")
        # It learns its vocabulary as a new BERT does.
        self.pieces = Embedded(name=name, vocabulary=vocabulary, tokenizer=tokenizer, precision=precision)
        self.name, self.precision = name, precision
        self.layers, self.hidden_dim, self.dropout, self.seed = layers, hidden_dim, dropout, seed

    def locate(self) -> Path | None:
        """Returns the directory of the given tokenizer, None without one."""
        return self.pieces.locate()

    def resolved(self) -> str:
        """Returns the name in records."""
        return f"{self.name} (BiLM, {self.layers} layers of 2 x {self.hidden_dim}, trained on the spot)"

    def fingerprint(self) -> str:
        """Returns a digest of everything that the untrained model depends on except its texts."""
        settings = [self.pieces.fingerprint(), self.layers, self.hidden_dim, self.dropout, self.seed]
        return hashlib.sha256(json.dumps(["bilm", *settings]).encode()).hexdigest()

    def width(self) -> int:
        """Returns the size of the hidden states."""
        return 2 * self.hidden_dim

    def load(
        self,
        auto_class: str,
        labels: Sequence[str] | None,
        texts: Iterable[str],
        *,
        problem_type: str | None = None,
    ) -> Start:
        """Returns the untrained model and its tokenizer. Without `labels` the head is over the vocabulary."""
        family = getattr(transformers, auto_class)
        if BilmConfig not in family._model_mapping:
            raise UserError(
                f"teacher {self.name} has no {auto_class}: pre-train it with task=bilm, or take another teacher"
            )
        tokenizer, notices = self.pieces.load_tokenizer(texts)
        config = BilmConfig(
            vocab_size=len(tokenizer), hidden_dim=self.hidden_dim, num_hidden_layers=self.layers, dropout=self.dropout,
            pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        if labels is not None:
            config.id2label = dict(enumerate(labels))
            config.label2id = {label: index for index, label in enumerate(labels)}
            config.problem_type = problem_type or default_problem_type(labels)
        torch.manual_seed(self.seed)
        model = family.from_config(config)
        notices += choose_padding_side(model.eval(), tokenizer)
        return Start(model, tokenizer, fits=False, reason="it is new", notices=notices)


def choose_weights(
    *,
    name: str = "bilm",
    path: str | None = None,
    layers: int = 2,
    hidden_dim: int = 256,
    vocabulary: int = 8000,
    tokenizer: str | None = None,
    dropout: float = 0.1,
    precision: str = "float32",
    trust_remote_code: bool = False,
    seed: int = 0,
) -> NewBilm | Pretrained:
    """Returns the trained model in the directory `path`, or without one a new one. The sizes are those of `NewBilm`.

    Raises:
        OptionError: for a size of a trained model.
    """
    sizes = {
        "layers": layers, "hidden_dim": hidden_dim, "vocabulary": vocabulary, "tokenizer": tokenizer,
        "dropout": dropout, "seed": seed,
    }  # fmt: skip
    if path is None:
        return NewBilm(name=name, precision=precision, **sizes)  # type: ignore[arg-type]
    parameters = inspect.signature(choose_weights).parameters
    for option, value in sizes.items():
        default = parameters[option].default
        if value != default:
            expected = f"{default}, the default, because teacher.path has a trained model with sizes of its own"
            raise OptionError(f"teacher.{option}", str(value), expected)
    return Pretrained(name=name, path=path, precision=precision, trust_remote_code=trust_remote_code)
