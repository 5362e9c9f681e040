"""Tokenizers with a vocabulary that is learned from texts, the same for the same texts."""

from collections import Counter
from collections.abc import Iterable, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertTokenizer, GPT2Tokenizer, PreTrainedTokenizerFast
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
END_OF_TEXT = "<|endoftext|>"
PADDING, END, MASK = "<pad>", "</s>", "<mask>"
SENTINELS = tuple(f"<extra_id_{number}>" for number in range(100))  # T5 has as many.
# Padding, unknown words and the beginning of a text, none of which has a word if a text holds it.
WORD_TOKENS = ("<0>", "<1>", "<2>")
# Python lowers a capital sigma at the end of a word to another letter, and tokenizers lower each character alone.
_FINAL_SIGMA = r"(?<=\p{Cased}\p{Case_Ignorable}*)\u03a3(?!\p{Case_Ignorable}*\p{Cased})"
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


def make_word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of whole words in lower case, as `TfidfVectorizer` of scikit-learn finds them in a text.

    Pages in a browser read no WordLevel. A WordPiece without pieces inside of words has the same tokens.
    """
    vocabulary = {word: number for number, word in enumerate([*WORD_TOKENS, *words])}
    padding, unknown, begin = WORD_TOKENS
    tokenizer = Tokenizer(
        models.WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=max(map(len, words), default=1))
    )
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Replace(Regex(_FINAL_SIGMA), "\u03c2"), normalizers.Lowercase(),
    ])  # fmt: skip
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\p{L}\p{N}_]{2,}"), "removed", invert=True)
    tokenizer.post_processor = processors.TemplateProcessing(  # A text without words has a token too.
        single=f"{begin} $A", pair=f"{begin} $A $B", special_tokens=[(begin, vocabulary[begin])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=padding, unk_token=unknown, cls_token=begin,
        model_max_length=VERY_LARGE_INTEGER, model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def train_bytes(texts: Iterable[str], vocabulary: int, positions: int = 1024) -> GPT2Tokenizer:
    """Trains a byte-level tokenizer with GPT-2's only special token. The first 256 tokens are the single bytes.

    Args:
        vocabulary: largest number of tokens.
        positions: tokens of the longest text.
    """
    learner = _learn_bytes(texts, vocabulary, (END_OF_TEXT,))
    return GPT2Tokenizer(tokenizer_object=learner, pad_token=END_OF_TEXT, model_max_length=positions)


def train_sentinels(
    texts: Iterable[str], vocabulary: int, positions: int = VERY_LARGE_INTEGER
) -> PreTrainedTokenizerFast:
    """Trains a byte-level tokenizer for encoder-decoders, which puts `</s>` behind each text.

    Its special tokens are those for padding, the end of a text and masks, and 100 sentinels as T5's.

    Args:
        vocabulary: largest number of tokens.
        positions: tokens of the longest text; without them any length.
    """
    learner = _learn_bytes(texts, vocabulary, (PADDING, END, MASK, *SENTINELS))
    learner.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(
            single=f"$A {END}", pair=f"$A {END} $B {END}", special_tokens=[(END, learner.token_to_id(END))]
        ),
    ])  # fmt: skip
    return PreTrainedTokenizerFast(
        tokenizer_object=learner, pad_token=PADDING, eos_token=END, mask_token=MASK, model_max_length=positions,
        extra_special_tokens=list(SENTINELS), model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def _learn_bytes(texts: Iterable[str], vocabulary: int, special: tuple[str, ...]) -> Tokenizer:
    """Returns byte-level tokens behind the special ones; the first 256 are the single bytes."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=list(special), min_frequency=2, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    learner.train_from_iterator(list(texts), trainer)
    return learner
