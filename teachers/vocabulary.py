"""Tokenizers with a vocabulary that is learned from texts, the same for the same texts."""

from collections import Counter
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertTokenizer, GPT2Tokenizer

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
END_OF_TEXT = "<|endoftext|>"
MAX_ALPHABET_SIZE = 1000  # Rarer characters are unknown.


def train_word_pieces(texts: Iterable[str], vocabulary: int, positions: int = 512) -> BertTokenizer:
    """Trains an uncased WordPiece tokenizer with BERT's special tokens.

    Args:
        vocabulary: largest number of tokens.
        positions: tokens of the longest text.
    """
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
    return BertTokenizer(tokenizer_object=tokenizer, do_lower_case=True, model_max_length=positions)


def train_bytes(texts: Iterable[str], vocabulary: int, positions: int = 1024) -> GPT2Tokenizer:
    """Trains a byte-level tokenizer with GPT-2's only special token. The first 256 tokens are the single bytes.

    Args:
        vocabulary: largest number of tokens.
        positions: tokens of the longest text.
    """
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END_OF_TEXT], min_frequency=2, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    learner.train_from_iterator(list(texts), trainer)
    return GPT2Tokenizer(tokenizer_object=learner, pad_token=END_OF_TEXT, model_max_length=positions)
