"""Linear classification of the TF-IDF of words as a Hugging Face model. Requires torch and transformers.

`save_pretrained` copies this file into the model's directory, and `from_pretrained(directory, trust_remote_code=True)`
loads the model from there.
"""

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from .modeling_texts import Scores, TextHead, TextModel, register


class TfidfConfig(PreTrainedConfig):
    """Configuration of the model."""

    model_type = "distill_tfidf"

    vocab_size: int = 30522
    pad_token_id: int | None = 0

    @property
    def hidden_size(self) -> int:
        """Number of the outputs, which are those of the words."""
        return int(self.num_labels)

    @property
    def num_hidden_layers(self) -> int:
        return 0


class TfidfForSequenceClassification(TextHead, TextModel):
    """Scores `logits [B, C]` of the words of a text, as `TfidfVectorizer(sublinear_tf=True)` of scikit-learn has them.

    A word that a text has n times has `(1 + log n) * idf`, and a text the length 1. A token of the word has its n-th
    part, so that no matrix has a column for each word.

    Attributes:
        idf: of each word, 0 for special tokens and unknown words, which a text is read without, `[V]`.
    """

    config_class = TfidfConfig
    idf: Tensor

    def __init__(self, config: TfidfConfig) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.num_labels)
        self.bias = nn.Parameter(torch.zeros(config.num_labels))
        self.register_buffer("idf", torch.ones(config.vocab_size))
        self.post_init()

    def score(self, input_ids: Tensor, mask: Tensor, output_hidden_states: bool, features: None) -> Scores:
        """Returns the scores `[B, C]` of `input_ids [B, L]`, and if requested the terms of their sum `[B, L, C]`."""
        is_token = mask.to(self.idf.dtype)
        counts = is_token.new_zeros(len(input_ids), self.config.vocab_size).scatter_add(1, input_ids, is_token)
        counts = counts.gather(1, input_ids).clamp(min=1)  # [B, L]
        values = (1 + counts.log()) * self.idf[input_ids]
        shares = is_token / counts
        length = (values * values * shares).sum(dim=1, keepdim=True).clamp(min=1e-12).sqrt()
        terms = (values * shares / length)[..., None] * self.embeddings(input_ids)
        return terms.sum(dim=1) + self.bias, (terms,) if output_hidden_states else None


register(TfidfForSequenceClassification)
