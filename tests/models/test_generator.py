"""Tests of the generator of replaced tokens: its size, the embeddings that it shares, its samples, and its refusals."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertForTokenClassification,
    AutoModelForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    BertForTokenClassification,
    DebertaV2Config,
    DebertaV2ForTokenClassification,
    DistilBertConfig,
    DistilBertForTokenClassification,
    ElectraConfig,
    ElectraForTokenClassification,
    ModernBertConfig,
    ModernBertForTokenClassification,
    MPNetConfig,
    MPNetForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    RobertaConfig,
    RobertaForTokenClassification,
)

from distill.core.errors import OptionError, UserError
from distill.models.generator import GeneratorOptions, sample_tokens
from distill.models.wrappers import SeveralHeads
from distill.text.vocabulary import train_word_pieces
from tests.conftest import sentences

VOCABULARY = 60
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 64, "max_position_embeddings": 40, "pad_token_id": 0}  # fmt: skip
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}


def bert(**options: int) -> PreTrainedModel:
    return BertForTokenClassification(BertConfig(**{**SMALL, **options}))


# A model of each family, and whether the generator has all of its embeddings.
FAMILIES: dict[str, tuple[Callable[[], PreTrainedModel], bool]] = {
    "bert": (bert, True),
    "electra": (lambda: ElectraForTokenClassification(ElectraConfig(**SMALL, embedding_size=16)), True),
    "albert": (lambda: AlbertForTokenClassification(AlbertConfig(**SMALL, embedding_size=16)), True),
    "distilbert": (
        lambda: DistilBertForTokenClassification(
            DistilBertConfig(vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=4, hidden_dim=64, pad_token_id=0)
        ),
        False,
    ),
    "roberta": (lambda: RobertaForTokenClassification(RobertaConfig(**SMALL)), False),
    "mpnet": (lambda: MPNetForTokenClassification(MPNetConfig(**SMALL)), False),
    "deberta": (lambda: DebertaV2ForTokenClassification(DebertaV2Config(**SMALL)), False),
    "modernbert": (lambda: ModernBertForTokenClassification(ModernBertConfig(**SMALL, **SPECIAL)), False),
}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_word_pieces([text for text, _ in sentences(40)], VOCABULARY)


def join(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **options: object) -> SeveralHeads:
    torch.manual_seed(0)
    return GeneratorOptions(**options).join(model, tokenizer)  # type: ignore[arg-type]


def test_the_generator_is_a_quarter_as_wide_with_heads_of_the_same_size(tokenizer: PreTrainedTokenizerBase) -> None:
    config = join(bert(), tokenizer).head("generator").config
    assert (config.hidden_size, config.num_attention_heads, config.num_hidden_layers) == (8, 1, 2)
    assert (config.embedding_size, config.intermediate_size) == (32, 32)
    config = join(bert(), tokenizer, width=0.5, layers=1).head("generator").config
    assert (config.hidden_size, config.num_attention_heads, config.num_hidden_layers) == (16, 2, 1)
    # A quarter of two heads is one narrower head.
    config = join(bert(num_attention_heads=2), tokenizer).head("generator").config
    assert (config.hidden_size, config.num_attention_heads) == (8, 1)
    assert not hasattr(join(bert(), tokenizer, width=1.0).head("generator").base_model, "embeddings_project")


@pytest.mark.parametrize(("build", "shares_all"), FAMILIES.values(), ids=FAMILIES.keys())
def test_both_models_have_the_same_table_of_words_in_every_family(
    build: Callable[[], PreTrainedModel], shares_all: bool, tokenizer: PreTrainedTokenizerBase
) -> None:
    torch.manual_seed(1)
    discriminator = build()
    joint = join(discriminator, tokenizer)
    generator = joint.head("generator")
    table = discriminator.get_input_embeddings()
    assert generator.get_input_embeddings() is table
    assert generator.get_output_embeddings().weight is table.weight
    own = generator.base_model.embeddings
    theirs = discriminator.base_model.embeddings
    assert (own.LayerNorm is getattr(theirs, "LayerNorm", None)) == shares_all
    assert (own.position_embeddings is getattr(theirs, "position_embeddings", None)) == shares_all
    ids = torch.arange(3, 15).unsqueeze(0)
    logits = generator(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    assert logits.shape == (1, 12, VOCABULARY)
    # A shared tensor is one parameter.
    parameters = list(joint.parameters())
    assert sum(parameter is table.weight for parameter in parameters) == 1


def test_a_saved_generator_gives_the_same_logits_and_shares_its_table_again(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    discriminator = bert(vocab_size=len(tokenizer))
    generator = join(discriminator, tokenizer).head("generator").eval()
    generator.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    ids = torch.arange(3, 15).unsqueeze(0)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=ids).logits, generator(input_ids=ids).logits)
    again = join(discriminator, tokenizer, path=str(tmp_path)).head("generator")
    assert again.get_input_embeddings() is discriminator.get_input_embeddings()
    assert again.base_model.embeddings.LayerNorm is discriminator.base_model.embeddings.LayerNorm
    # Another discriminator has another table, and the generator of the file its own.
    other = bert(vocab_size=len(tokenizer))
    apart = join(other, tokenizer, path=str(tmp_path)).head("generator")
    assert apart.get_input_embeddings() is not other.get_input_embeddings()
    assert torch.equal(apart.get_input_embeddings().weight, discriminator.get_input_embeddings().weight)


def test_samples_follow_the_distribution_of_the_generator() -> None:
    """The statistic of Pearson's test stays below its 99.9% quantile, 27.9 for 9 degrees of freedom."""
    logits = torch.tensor([0.0, 1.0, -2.0, 3.0, 2.0, -1.0, 0.5, 1.5, -0.5, 2.5])
    number = 20_000
    drawn = sample_tokens(logits.expand(number, -1), seed=3)
    expected = number * logits.softmax(-1)
    counts = torch.bincount(drawn, minlength=10)
    assert float(((counts - expected) ** 2 / expected).sum()) < 27.9
    # The test can tell: the most probable tokens alone would be far outside, and so would a higher temperature.
    flat = torch.bincount(sample_tokens((logits / 1.1).expand(number, -1), seed=3), minlength=10)
    assert float(((flat - expected) ** 2 / expected).sum()) > 27.9


def test_samples_depend_on_the_seed_alone_and_draw_nothing_from_the_common_generator() -> None:
    logits = torch.randn(50, 20)
    state = torch.random.get_rng_state()
    first, again, other = (sample_tokens(logits, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    # A token without probability is never drawn.
    logits[:, :15] = -torch.inf
    assert int(sample_tokens(logits, 1).min()) >= 15


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"width": 1.5}, "got width=1.5, expected a share above 0 and at most 1"),
        ({"width": 0.0}, "got width=0.0, expected a share above 0 and at most 1"),
        ({"layers": 0}, "got layers=0, expected a whole number of at least 1 or null"),
    ],
)
def test_sizes_out_of_range_are_refused(options: dict[str, float], expected: str) -> None:
    with pytest.raises(OptionError, match=expected):
        GeneratorOptions(**options)  # type: ignore[arg-type]


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> str:
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


def test_a_generator_that_does_not_suit_its_discriminator_is_refused(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    discriminator, size = bert(vocab_size=len(tokenizer)), {**SMALL, "vocab_size": len(tokenizer)}
    wide = save(BertForMaskedLM(BertConfig(**{**size, "hidden_size": 64})), tokenizer, tmp_path / "wide")
    with pytest.raises(OptionError, match="a generator of at most 32, the width of its discriminator, and it has 64"):
        join(discriminator, tokenizer, path=wide)
    other = train_word_pieces(["quick zebras jump", "six boxes"] * 20, VOCABULARY)
    foreign = save(BertForMaskedLM(BertConfig(**{**size, "vocab_size": len(other)})), other, tmp_path / "foreign")
    with pytest.raises(OptionError, match=r"path=\S+foreign, expected a generator with the vocabulary of its discrimi"):
        join(discriminator, tokenizer, path=foreign)
    headless = save(bert(vocab_size=len(tokenizer)), tokenizer, tmp_path / "headless")
    with pytest.raises(UserError, match=r"headless is no masked language model: .*; null makes a new generator"):
        join(discriminator, tokenizer, path=headless)
    with pytest.raises(UserError, match=r"task.generator.path=\S+absent is no directory"):
        join(discriminator, tokenizer, path=str(tmp_path / "absent"))
