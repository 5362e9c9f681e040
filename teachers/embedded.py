"""The teacher that needs nothing from outside: a small BERT and its vocabulary, made from the task's own text."""

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
from distill.files import hash_file
from distill.models.loading import Start, has_tokenizer
from teachers.pretrained import check_precision

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_LENGTH = 512
LARGEST_ALPHABET = 1000  # Characters; rarer ones are unknown.


class Embedded:
    """A BERT of `layers` x `hidden_size` from random weights, to be trained on the spot.

    Args:
        vocabulary: WordPiece tokens, trained on the task's training texts.
        tokenizer: a directory that holds a tokenizer, taken as it is in the place of a new one.
        precision: in which it answers: `float32` or `bfloat16`.
        seed: draws the weights.
    """

    is_new = True

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
        """There is nothing to find, but for a tokenizer that was given."""
        if self.tokenizer is None:
            return None
        directory = Path(self.tokenizer).expanduser()
        if not has_tokenizer(directory):
            raise UserError(f"teacher.tokenizer={self.tokenizer} holds no tokenizer, expected tokenizer.json there")
        return directory

    def resolved(self) -> str:
        """The teacher as records name it."""
        return f"{self.name} (BERT, {self.layers} layers of {self.hidden_size}, trained on the spot)"

    def fingerprint(self) -> str:
        """A digest of everything that the untrained model depends on, its texts aside."""
        settings = {name: value for name, value in vars(self).items() if name not in ("precision", "tokenizer")}
        directory = self.locate()
        if directory is not None:
            settings["tokenizer"] = [hash_file(path) for path in sorted(directory.glob("*.json"))]
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def load(self, auto_class: str, labels: Sequence[str] | None, texts: Iterable[str]) -> Start:
        """The untrained model with a head for `labels`, or without any over the vocabulary, and its tokenizer."""
        tokenizer = self._tokenizer(texts)
        config = BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=self.hidden_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=4 * self.hidden_size,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=0.0,  # It would keep attention off its fast path.
            max_position_embeddings=MAX_LENGTH,
            pad_token_id=tokenizer.pad_token_id,
        )
        if labels is not None:
            config.id2label = dict(enumerate(labels))
            config.label2id = {label: index for index, label in enumerate(labels)}
            config.problem_type = "regression" if len(labels) == 1 else "single_label_classification"
        torch.manual_seed(self.seed)
        model = getattr(transformers, auto_class).from_config(config)
        return Start(model, tokenizer, fits=False, reason="it is new")

    def _tokenizer(self, texts: Iterable[str]) -> PreTrainedTokenizerBase:
        directory = self.locate()
        if directory is None:
            return train_tokenizer(texts, self.vocabulary)
        tokenizer: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(directory)
        return tokenizer


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> BertTokenizer:
    """An uncased WordPiece tokenizer with BERT's special tokens, from these texts alone; the same every time."""
    texts = list(texts)
    normalizer, words = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    counts = Counter(character for text in texts for character in normalizer.normalize_str(text) if character.strip())
    characters = sorted(sorted(counts), key=lambda character: -counts[character])[:LARGEST_ALPHABET]
    # The trainer numbers the pieces inside words by the order of a hash table, which differs from process to process
    # and decides between equally frequent merges. Given as special tokens, they have their numbers from the start.
    inside = [f"##{character}" for character in sorted(characters)]
    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.normalizer, learner.pre_tokenizer = normalizer, words
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=[*SPECIAL_TOKENS, *inside], min_frequency=2, show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    # A tokenizer of its own, in which those pieces are ordinary ones again.
    tokenizer = Tokenizer(models.WordPiece(vocab=learner.get_vocab(), unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, words
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return BertTokenizer(tokenizer_object=tokenizer, do_lower_case=True, model_max_length=MAX_LENGTH)
