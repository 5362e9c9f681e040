"""Tests of replaced-token detection: its corrupted text, its gradients, its noise and its metrics by hand."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForTokenClassification

from distill.core.contracts import IGNORED, Items, Outputs, Scores
from distill.core.errors import OptionError, UserError
from distill.kinds import ReplacedTokenDetection
from distill.kinds.masked_lm import DetectionScores
from distill.losses import GeneratorLoss, Objective, ReplacedTokens
from distill.models import decoding
from distill.models.generator import GeneratorOptions
from distill.models.wrappers import SeveralHeads
from distill.text.masking import Masking
from distill.text.vocabulary import train_word_pieces
from distill.training.module import parameter_groups
from tests.conftest import sentences

VOCABULARY, MASK = 40, 4
TASK = ReplacedTokenDetection()
SCORING = DetectionScores(TASK.settings)


def bert(**options: int) -> BertForTokenClassification:
    size = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 64, "max_position_embeddings": 40}  # fmt: skip
    torch.manual_seed(0)
    return BertForTokenClassification(BertConfig(**{**size, **options}, num_labels=2, initializer_range=0.3))


@pytest.fixture
def model() -> SeveralHeads:
    return GeneratorOptions().join(bert(), train_word_pieces(["a word"], VOCABULARY)).eval()


def batch_of(rows: tuple[int, ...] = (0, 1, 2), *, padding: int = 0, left: bool = False) -> dict[str, Tensor]:
    """Returns these of three masked sequences of 12, 8 and 5 tokens."""
    random = torch.Generator().manual_seed(5)
    ids = torch.randint(5, VOCABULARY, (3, 12), generator=random)
    chosen = torch.rand(ids.shape, generator=random) < 0.4
    mask = torch.arange(12) < torch.tensor([12, 8, 5])[:, None]
    chosen, ids = chosen & mask, ids * mask
    batch = {
        "input_ids": ids.masked_fill(chosen, MASK), "attention_mask": mask.long(),
        "labels": ids.masked_fill(~chosen, IGNORED),
    }  # fmt: skip
    if left:
        batch = {
            name: torch.stack([row.roll(12 - n) for row, n in zip(rows_, (12, 8, 5), strict=True)])
            for name, rows_ in batch.items()
        }
    fill = {"input_ids": 0, "attention_mask": 0, "labels": IGNORED}
    batch = {
        name: nn.functional.pad(column, (0, padding), value=fill[name])[list(rows)] for name, column in batch.items()
    }
    return batch | {"example_id": torch.tensor(rows)}


def run(model: nn.Module, batch: dict[str, Tensor], task: ReplacedTokenDetection = TASK) -> tuple[Items, Outputs]:
    items = task.select(batch)
    return items, task.run(model, batch, items, frozenset()).at(items)  # type: ignore[arg-type]


def read_inputs(model: SeveralHeads, batch: dict[str, Tensor], task: ReplacedTokenDetection = TASK) -> Tensor:
    """Returns the tokens that the discriminator reads."""
    seen: list[Tensor] = []
    handle = model.head("discriminator").base_model.embeddings.register_forward_pre_hook(
        lambda module, arguments, options: seen.append(options["input_ids"]), with_kwargs=True
    )
    try:
        run(model, batch, task)
    finally:
        handle.remove()
    return seen[-1]


def test_the_items_are_all_tokens_but_padding_with_the_text_as_labels_of_the_masked() -> None:
    batch = {
        "input_ids": torch.tensor([[1, MASK, 7], [8, 9, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
        "labels": torch.tensor([[IGNORED, 6, IGNORED], [IGNORED] * 3]),
    }  # fmt: skip
    items = TASK.select(batch)
    assert items.index is not None
    assert items.index.tolist() == [0, 1, 2, 3, 4]
    assert items.row.tolist() == [0, 0, 0, 1, 1]
    assert items.labels.tolist() == [IGNORED, 6, IGNORED, IGNORED, IGNORED]
    masked = items.masked_tokens()
    assert (masked.labels.tolist(), masked.index.tolist()) == ([6], [1])  # type: ignore[union-attr]


def test_the_discriminator_reads_samples_at_masked_tokens_and_the_text_elsewhere(model: SeveralHeads) -> None:
    batch = batch_of()
    items, outputs = run(model, batch)
    inputs, text = (
        read_inputs(model, batch),
        torch.where(batch["labels"] != IGNORED, batch["labels"], batch["input_ids"]),
    )
    masked = batch["labels"] != IGNORED
    assert torch.equal(inputs[~masked], text[~masked])
    assert bool((inputs != text)[masked].any())
    assert outputs.replaced is not None
    assert torch.equal(outputs.replaced, (inputs != text).flatten()[items.index])
    expected = model.head("discriminator")(input_ids=inputs, attention_mask=batch["attention_mask"]).logits
    torch.testing.assert_close(outputs.logits, expected.flatten(0, 1)[items.index])


def test_a_sample_that_equals_the_token_of_the_text_is_original(model: SeveralHeads) -> None:
    batch = batch_of()
    masked = batch["labels"] != IGNORED
    model.head("generator").get_output_embeddings().bias.data[9] = 1e4  # It always draws the token 9.
    batch["labels"][masked] = torch.where(torch.arange(int(masked.sum())) % 2 == 0, 9, 10)
    items, outputs = run(model, batch)
    assert outputs.replaced is not None
    assert outputs.replaced[items.labelled].tolist() == [index % 2 == 1 for index in range(int(masked.sum()))]
    assert not outputs.replaced[~items.labelled].any()


def test_the_detection_has_a_gradient_at_shared_embeddings_and_at_nothing_else_of_the_generator(
    model: SeveralHeads,
) -> None:
    items, outputs = run(model, batch_of())
    total, _ = ReplacedTokens()(outputs, Outputs(), items)
    total.backward()
    shared = {id(parameter) for parameter in model.head("discriminator").parameters()}
    own = {name: of for name, of in model.head("generator").named_parameters() if id(of) not in shared}
    assert "electra.embeddings_project.weight" in own
    assert all(parameter.grad is None for parameter in own.values())
    table = model.head("generator").get_input_embeddings().weight
    assert table.grad is not None
    of_detection = table.grad.clone()
    assert float(of_detection.abs().max()) > 0
    # The generator's loss changes itself, and the embeddings too.
    items, outputs = run(model, batch_of())
    GeneratorLoss()(outputs, Outputs(), items)[0].backward()
    assert all(parameter.grad is not None for parameter in own.values())
    assert not torch.equal(table.grad, of_detection)


def test_a_shared_parameter_is_in_the_optimizer_once(model: SeveralHeads) -> None:
    groups = parameter_groups(model, 0.01)
    parameters = [id(parameter) for group in groups for parameter in group["params"]]
    assert len(parameters) == len(set(parameters)) == len(list(model.parameters()))


def test_the_noise_depends_on_the_seed_and_not_on_the_common_generator(model: SeveralHeads) -> None:
    torch.manual_seed(1)
    first = read_inputs(model, batch_of())
    torch.manual_seed(2)
    assert torch.equal(read_inputs(model, batch_of()), first)
    other = ReplacedTokenDetection(seed=1)
    assert not torch.equal(read_inputs(model, batch_of(), other), first)


def test_chunks_of_a_large_vocabulary_have_the_samples_and_losses_of_the_whole(
    model: SeveralHeads, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective, results = Objective(mlm=GeneratorLoss(), replaced=ReplacedTokens()), []
    for limit in (decoding.CHUNK_LOGITS, 3 * VOCABULARY):
        monkeypatch.setattr(decoding, "CHUNK_LOGITS", limit)
        model.zero_grad()
        items, outputs = run(model, batch_of())
        loss, sums = objective(outputs, Outputs(), items)
        loss.backward()
        gradient = model.head("generator").get_input_embeddings().weight.grad
        assert gradient is not None
        results.append((sums, gradient.clone(), SCORING.score(outputs, items)["generator_loss"].detach()))
        assert outputs.generator is not None
        assert (outputs.generator.head is None) == (limit > 3 * VOCABULARY)
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def scores_of(probabilities: list[float], replaced: list[bool], generator: list[float]) -> Scores:
    """Returns the scores of tokens with these probabilities of being replaced."""
    logits = np.log([[1 - p, p] for p in probabilities]).astype(np.float32)
    columns = {"logits": logits, "replaced": np.array(replaced), "generator_loss": np.array(generator, np.float32)}
    return Scores(columns, np.full(len(replaced), IGNORED), np.arange(len(replaced)) // 2)


def test_the_metrics_have_values_worked_out_by_hand() -> None:
    scores = scores_of(
        [0.75, 0.25, 0.75, 0.25], [True, True, False, False], [math.log(2), math.log(8), math.nan, math.nan]
    )
    metrics = SCORING.metrics(scores)
    assert metrics["loss"] == pytest.approx(-(2 * math.log(0.75) + 2 * math.log(0.25)) / 4)
    assert metrics["prior"] == pytest.approx(math.log(2))
    assert (metrics["accuracy"], metrics["recall"], metrics["precision"], metrics["replaced"]) == (0.5, 0.5, 0.5, 0.5)
    assert metrics["generator_perplexity"] == pytest.approx(4.0)
    assert SCORING.metric == "joint_loss"
    assert metrics["joint_loss"] == pytest.approx(math.log(4) + 50 * metrics["loss"])
    nothing = SCORING.metrics(scores_of([0.1, 0.1], [False, False], [0.0, math.nan]))
    assert (nothing["recall"], nothing["precision"], nothing["prior"]) == (0.0, 0.0, 0.0)
    table = SCORING.tabulate(scores, None, examples=2)  # type: ignore[arg-type]
    assert table["label"] == [["replaced", "replaced"], ["original", "original"]]
    assert table["prediction"] == [["replaced", "original"], ["replaced", "original"]]


def test_the_constant_has_the_entropy_of_the_replaced_share() -> None:
    scores = scores_of([0.9, 0.4, 0.3, 0.2], [True, False, False, False], [0.0] * 4)
    [constant] = SCORING.constants(scores)
    loss = SCORING.metrics(constant.predict(scores))["loss"]
    assert loss == pytest.approx(SCORING.metrics(scores)["prior"], abs=1e-6)
    assert loss == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)), abs=1e-6)
    without = replace(scores, columns={**scores.columns, "replaced": np.zeros(4, bool)})
    assert SCORING.constants(without) == []


def test_options_and_tokenizers_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="got pair=nsp, expected null, because a discriminator has one head"):
        ReplacedTokenDetection(packing="segment_pair", pair="nsp")
    with pytest.raises(OptionError, match=r"got mask.shuffle=0.05, expected 0, because a generator fills masks alone"):
        ReplacedTokenDetection(mask=Masking(shuffle=0.05))
    (tmp_path / "text.txt").write_text("\n".join(text for text, _ in sentences(60)), encoding="utf-8")
    task = ReplacedTokenDetection(data=tmp_path, documents="line", max_length=16, dev_fraction=0.2)
    data = task.read(tmp_path)
    tokenizer = train_word_pieces(data.texts(), 200)
    assert len(task.encode(data, tokenizer, tmp_path)["train"]) > 1  # type: ignore[arg-type]
    discriminator = bert(vocab_size=len(tokenizer))
    assert task.assemble(discriminator, tokenizer).config is discriminator.config
    short = bert(vocab_size=len(tokenizer), max_position_embeddings=10)
    with pytest.raises(UserError, match=r"task.max_length=16, but the generator reads 10 tokens at most"):
        task.assemble(short, tokenizer)
    tokenizer.mask_token = None
    with pytest.raises(UserError, match="has no mask token, which masked language modelling needs"):
        task.encode(data, tokenizer, tmp_path)
