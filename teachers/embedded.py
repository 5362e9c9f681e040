"""A small BERT with random weights and a vocabulary trained on the task's text, which needs no download."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertTokenizer, PreTrainedTokenizerBase

from distill.errors import UserError
from distill.models.loading import Start, check_tokenizer, default_problem_type, has_tokenizer
from distill.models.padding import choose_padding_side
from distill.models.tokenizer import load_tokenizer
from distill.storage.files import hash_file

from .pretrained import check_precision

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_LENGTH = 512
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".ot", ".onnx", ".gguf")
MAX_ALPHABET_SIZE = 1000  # Rarer characters are unknown.


class Embedded:
    """A BERT with random weights, to be trained before it teaches.

    Args:
        vocabulary: largest number of WordPiece tokens, trained on the task's training texts.
        tokenizer: a directory with a tokenizer to use instead of a new one.
        precision: precision of the forward passes, `float32` or `bfloat16`.
        seed: seed of the weights.
    """

    is_new = True
    trust_remote_code = False

    def __init__(
        self,
        *,
        name: str = "embedded",
        layers: int = 4,
        hidden_size: int = 256,
        heads: int = 4,
        vocabulary: int = 8000,
        tokenizer: str | None = None,
        dropout: float = 0.1,
        precision: str = "float32",
        seed: int = 0,
    ) -> None:
        check_precision(precision)
        self.name, self.precision = name, precision
        self.layers, self.hidden_size, self.heads = layers, hidden_size, heads
        self.tokenizer = tokenizer
        self.vocabulary, self.dropout, self.seed = vocabulary, dropout, seed

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
        return f"{self.name} (BERT, {self.layers} layers of {self.hidden_size}, trained on the spot)"

    def fingerprint(self) -> str:
        """Returns a digest of everything that the untrained model depends on except its texts."""
        settings = {name: value for name, value in vars(self).items() if name not in ("precision", "tokenizer")}
        directory = self.locate()
        if directory is not None:
            settings["tokenizer"] = [hash_file(path) for path in sorted(directory.iterdir()) if _is_of_tokenizer(path)]
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def width(self) -> int:
        """Returns the size of the hidden states."""
        return self.hidden_size

    def load(
        self,
        auto_class: str,
        labels: Sequence[str] | None,
        texts: Iterable[str],
        *,
        problem_type: str | None = None,
    ) -> Start:
        """Returns the untrained model and its tokenizer. Without `labels` the head is over the vocabulary."""
        tokenizer, notices = self.load_tokenizer(texts)
        config = BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=self.hidden_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=4 * self.hidden_size,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=0.0,  # Dropout would prevent the fast attention kernel.
            max_position_embeddings=MAX_LENGTH,
            pad_token_id=tokenizer.pad_token_id,
        )
        if labels is not None:
            config.id2label = dict(enumerate(labels))
            config.label2id = {label: index for index, label in enumerate(labels)}
            config.problem_type = problem_type or default_problem_type(labels)
        torch.manual_seed(self.seed)
        model = getattr(transformers, auto_class).from_config(config)
        notices += choose_padding_side(model.eval(), tokenizer)
        return Start(model, tokenizer, fits=False, reason="it is new", notices=notices)

    def load_tokenizer(self, texts: Iterable[str]) -> tuple[PreTrainedTokenizerBase, list[str]]:
        """Returns the given tokenizer or one that is trained on the texts, and notices."""
        directory = self.locate()
        if directory is None:
            return train_tokenizer(texts, self.vocabulary), []
        tokenizer, notices = load_tokenizer(directory)
        check_tokenizer(tokenizer, directory)
        return tokenizer, notices


def _is_of_tokenizer(path: Path) -> bool:
    """Returns whether a tokenizer may be loaded from this file: vocab.txt, merges.txt, any *.json or *.model."""
    return path.is_file() and path.suffix not in _WEIGHTS and path.suffix != ".md" and not path.name.startswith(".")


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> BertTokenizer:
    """Trains an uncased WordPiece tokenizer with BERT's special tokens, the same for the same texts."""
    texts = list(texts)
    normalizer, words = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    counts = Counter(character for text in texts for character in normalizer.normalize_str(text) if character.strip())
    characters = sorted(sorted(counts), key=lambda character: -counts[character])[:MAX_ALPHABET_SIZE]
    # The ids of the pieces decide between equally frequent merges. The trainer takes the ids of pieces within words
    # from the order of a hash table, which differs between processes. As special tokens the pieces have fixed ids.
    inside = [f"##{character}" for character in sorted(characters)]
    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.normalizer, learner.pre_tokenizer = normalizer, words
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=[*SPECIAL_TOKENS, *inside], min_frequency=2, show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    # In a new tokenizer these pieces are ordinary tokens.
    tokenizer = Tokenizer(models.WordPiece(vocab=learner.get_vocab(), unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, words
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return BertTokenizer(tokenizer_object=tokenizer, do_lower_case=True, model_max_length=MAX_LENGTH)
