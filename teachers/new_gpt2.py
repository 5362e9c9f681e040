"""A small GPT-2 with random weights and a byte-level vocabulary trained on the task's text, which needs no download."""

import hashlib
import json
from collections.abc import Iterable, Sequence

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2Tokenizer

from distill.errors import UserError
from distill.models.loading import Start
from distill.models.padding import choose_padding_side

from .pretrained import check_precision

END_OF_TEXT = "<|endoftext|>"


class NewGPT2:
    """A GPT-2 with random weights, to be trained before it teaches.

    Args:
        vocabulary: largest number of tokens, trained on the task's training texts; 256 of them are the single bytes.
        positions: tokens of the longest text.
        precision: precision of the forward passes, `float32` or `bfloat16`.
        seed: seed of the weights.
    """

    is_new = True
    trust_remote_code = False

    def __init__(
        self,
        *,
        name: str = "new_gpt2",
        layers: int = 4,
        hidden_size: int = 128,
        heads: int = 4,
        vocabulary: int = 8000,
        positions: int = 1024,
        dropout: float = 0.1,
        precision: str = "float32",
        seed: int = 0,
    ) -> None:
        check_precision(precision)
        self.name, self.precision = name, precision
        self.layers, self.hidden_size, self.heads = layers, hidden_size, heads
        self.vocabulary, self.positions, self.dropout, self.seed = vocabulary, positions, dropout, seed

    def locate(self) -> None:
        """Does nothing, because there are no files."""

    def resolved(self) -> str:
        """Returns the name in records."""
        return f"{self.name} (GPT-2, {self.layers} layers of {self.hidden_size}, trained on the spot)"

    def fingerprint(self) -> str:
        """Returns a digest of everything that the untrained model depends on except its texts."""
        settings = {name: value for name, value in vars(self).items() if name != "precision"}
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
        """Returns the untrained model with a head over its vocabulary, and its tokenizer."""
        if auto_class != "AutoModelForCausalLM":
            raise UserError(f"teacher {self.name} is a causal language model: set task=clm, or take +teacher=bert_tiny")
        tokenizer = train_tokenizer(texts, self.vocabulary, self.positions)
        config = GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=self.positions,
            n_embd=self.hidden_size,
            n_layer=self.layers,
            n_head=self.heads,
            resid_pdrop=self.dropout,
            embd_pdrop=self.dropout,
            attn_pdrop=0.0,  # Dropout would prevent the fast attention kernel.
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        torch.manual_seed(self.seed)
        model = getattr(transformers, auto_class).from_config(config)
        notices = choose_padding_side(model.eval(), tokenizer)
        return Start(model, tokenizer, fits=False, reason="it is new", notices=notices)


def train_tokenizer(texts: Iterable[str], vocabulary: int, positions: int) -> GPT2Tokenizer:
    """Trains a byte-level tokenizer with GPT-2's only special token, the same for the same texts."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END_OF_TEXT], min_frequency=2, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    learner.train_from_iterator(list(texts), trainer)
    return GPT2Tokenizer(tokenizer_object=learner, pad_token=END_OF_TEXT, model_max_length=positions)
