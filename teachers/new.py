"""A model of any family with random weights and a vocabulary learned from the task's text, which needs no download."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveInt
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from distill.core.errors import OptionError, UserError, first_line
from distill.core.files import hash_file
from distill.core.options import Dropout, check_options
from distill.models.forward import check_reads_both_sides, choose_padding_side, model_class
from distill.models.loading import OF_TEXTS, Start, check_tokenizer, default_problem_type, has_tokenizer
from distill.models.sentence_files import load_tokenizer, separate_texts
from distill.models.surgery.layers import reserved_positions
from distill.text.vocabulary import train_bytes, train_sentinels, train_word_pieces

from .pretrained import check_precision

Pieces = Annotated[Literal["words", "bytes", "sentinels"], Field(description="words or bytes or sentinels")]
TRAINERS = {"words": train_word_pieces, "bytes": train_bytes, "sentinels": train_sentinels}
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".ot", ".onnx", ".gguf")
# Options with a name of their own -> entries of the configurations of most families.
_ENTRIES = {
    "layers": "num_hidden_layers", "hidden_size": "hidden_size", "heads": "num_attention_heads",
    "positions": "max_position_embeddings",
}  # fmt: skip
# Entries of encoder-decoders, whose halves have the same sizes.
_HALVES = {
    "layers": ("decoder_layers", "num_decoder_layers"), "heads": ("decoder_attention_heads",),
}  # fmt: skip
_FEED_FORWARD = ("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff")
_SPECIAL = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")


class NewModel:
    """A model with random weights, to be trained before it teaches.

    Args:
        name: name of the teacher in records and directories.
        family: the `model_type` of its configuration in transformers, such as `bert`, `albert` or `gpt2`.
        layers: number of layers.
        hidden_size: width of the hidden states, a multiple of `heads`; None for a family with another size.
        heads: attention heads of a layer; None for a family without attention.
        positions: tokens of the longest text; None for a family that reads any length.
        sizes: further entries of its configuration. The others are those of the family, but for the feed-forward
            network, which is four times as wide as the hidden states.
        dropout: share of the activations that is dropped, but for the probabilities of attention: their dropout would
            prevent the fast attention kernel.
        pieces: the vocabulary that is learned: `words`, uncased WordPiece tokens with BERT's special tokens, or
            `bytes`, byte-level tokens with GPT-2's only special token, or `sentinels`, byte-level tokens with
            T5's special tokens and a mask, for encoder-decoders.
        vocabulary: largest number of tokens, learned from the task's training texts.
        tokenizer: a directory with a tokenizer to use instead of a new one.
        precision: precision of the forward passes, `float32`, `bfloat16` or `auto`.
        seed: seed of the weights.

    Raises:
        OptionError: for an unknown family or entry, a size below 1, or a share out of range.
    """

    is_new = True
    trust_remote_code = False

    @check_options("teacher")
    def __init__(
        self,
        *,
        name: str = "new",
        family: str = "bert",
        layers: PositiveInt = 4,
        hidden_size: PositiveInt | None = 256,
        heads: PositiveInt | None = 4,
        positions: PositiveInt | None = 512,
        sizes: Mapping[str, Any] | None = None,
        dropout: Dropout = 0.1,
        pieces: Pieces = "words",
        vocabulary: PositiveInt = 8000,
        tokenizer: str | None = None,
        precision: str = "float32",
        seed: int = 0,
    ) -> None:
        check_precision(precision)
        self.name, self.precision, self.tokenizer = name, precision, tokenizer
        self.family, self.layers, self.hidden_size, self.heads = family, layers, hidden_size, heads
        self.positions, self.sizes, self.dropout = positions, dict(sizes or {}), dropout
        self.pieces, self.vocabulary, self.seed = pieces, vocabulary, seed
        self.configure()

    def locate(self) -> Path | None:
        """Returns the directory of the given tokenizer, None without one."""
        if self.tokenizer is None:
            return None
        directory = Path(self.tokenizer).expanduser()
        if not has_tokenizer(directory):
            raise UserError(f"teacher.tokenizer={self.tokenizer} holds no tokenizer, expected tokenizer.json there")
        return directory

    def resolved(self) -> str:
        """Returns the name in records."""
        family = self.family.removeprefix("distill_").upper()
        return f"{self.name} ({family}, {self.layers} layers of {self.width()}, trained on the spot)"

    def fingerprint(self) -> str:
        """Returns a digest of everything that the untrained model depends on except its texts."""
        settings = {name: value for name, value in vars(self).items() if name not in ("precision", "tokenizer")}
        directory = self.locate()
        if directory is not None:
            settings["tokenizer"] = [hash_file(path) for path in sorted(directory.iterdir()) if _is_of_tokenizer(path)]
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def width(self) -> int:
        """Returns the size of the hidden states."""
        return int(self.configure().hidden_size)

    def configure(self, **special: int | None) -> PreTrainedConfig:
        """Returns the configuration.

        Args:
            special: entries that depend on the tokenizer.
        """
        try:
            family = AutoConfig.for_model(self.family)
        except ValueError:
            expected = "a model_type of transformers, such as bert, albert, electra or gpt2"
            raise OptionError("teacher.family", str(self.family), expected) from None
        values = {entry: getattr(self, option) for option, entry in _ENTRIES.items()}
        values = {entry: value for entry, value in values.items() if value is not None}
        values |= self._sizes_of(family)
        for entry, value in family.to_dict().items():
            if "drop" in entry and "layerdrop" not in entry and isinstance(value, float):
                values[entry] = 0.0 if "att" in entry else self.dropout
        values |= self.sizes
        for entry, value in values.items():
            if not hasattr(family, entry):
                self._refuse(entry, value)
        named = {family.attribute_map.get(entry, entry): value for entry, value in values.items()}
        return AutoConfig.for_model(self.family, **named, **special)

    def _sizes_of(self, family: PreTrainedConfig) -> dict[str, int]:
        """Returns the entries of some families that follow from the sizes."""
        sizes: dict[str, int] = {}
        if self.hidden_size is not None:
            sizes |= dict.fromkeys(_FEED_FORWARD, 4 * self.hidden_size)
            if self.heads is not None:
                sizes["d_kv"] = self.hidden_size // self.heads
        if family.is_encoder_decoder:
            sizes |= {entry: getattr(self, option) for option, entries in _HALVES.items() for entry in entries}
        return {entry: size for entry, size in sizes.items() if size is not None and hasattr(family, entry)}

    def _refuse(self, entry: str, value: object) -> None:
        """Raises OptionError for an entry that the configuration of the family does not have."""
        option = next((name for name, of in _ENTRIES.items() if of == entry), None)
        if option is None or entry in self.sizes:
            raise OptionError(f"teacher.sizes.{entry}", str(value), f"an entry of the configuration of {self.family}")
        raise OptionError(f"teacher.{option}", str(value), f"null, because {self.family} has none")

    def load(
        self, auto_class: str, labels: Sequence[str] | None, texts: Iterable[str], *, problem_type: str | None = None
    ) -> Start:
        """Returns the untrained model and its tokenizer. Without `labels` the head is over the vocabulary.

        Raises:
            UserError: for a head that the family does not have, or sizes that do not suit each other.
        """
        check_reads_both_sides(self.configure(), auto_class, f"teacher {self.name}")
        create = model_class(auto_class, type(self.configure()))
        if create is None:
            raise UserError(
                f"teacher {self.name} ({self.family}) has no {auto_class}: take a task that its family has a head "
                "for, or another teacher"
            )
        tokenizer, notices = self.load_tokenizer(texts)
        if auto_class == OF_TEXTS:
            separate_texts(tokenizer)
        special = {name: getattr(tokenizer, name) for name in _SPECIAL}
        config = self.configure(vocab_size=len(tokenizer), **special)
        if config.is_encoder_decoder:
            family = AutoConfig.for_model(self.family)
            # A BART writes behind the end of a text, and a T5 behind padding.
            starts_at_end = getattr(family, "decoder_start_token_id", None) == family.eos_token_id
            config.decoder_start_token_id = config.eos_token_id if starts_at_end else config.pad_token_id
        if labels is not None:
            config.id2label = dict(enumerate(labels))
            config.label2id = {label: index for index, label in enumerate(labels)}
            config.problem_type = problem_type or default_problem_type(labels)
        model = self._create(create, config)
        reserved = reserved_positions(model)
        if self.positions is not None and reserved:  # Of RoBERTa and its relatives, which count from behind them.
            config.max_position_embeddings = self.positions + reserved
            model = self._create(create, config)
        notices += choose_padding_side(model.eval(), tokenizer)
        return Start(model, tokenizer, fits=False, reason="it is new", notices=notices)

    def _create(self, create: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
        """Returns the model with random weights."""
        torch.manual_seed(self.seed)
        try:
            return create(config)
        except ValueError as error:
            raise UserError(f"teacher {self.name} ({self.family}) cannot be made: {first_line(error)}") from error

    def load_tokenizer(self, texts: Iterable[str]) -> tuple[PreTrainedTokenizerBase, list[str]]:
        """Returns the given tokenizer or one that is trained on the texts, and notices."""
        directory = self.locate()
        if directory is None:
            longest = {} if self.positions is None else {"positions": self.positions}
            return TRAINERS[self.pieces](texts, self.vocabulary, **longest), []
        tokenizer, notices = load_tokenizer(directory)
        check_tokenizer(tokenizer, directory)
        return tokenizer, notices


def _is_of_tokenizer(path: Path) -> bool:
    """Returns whether a tokenizer may be loaded from this file: vocab.txt, merges.txt, any *.json or *.model."""
    return path.is_file() and path.suffix not in _WEIGHTS and path.suffix != ".md" and not path.name.startswith(".")
