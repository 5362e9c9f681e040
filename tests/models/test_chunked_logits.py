"""Tests that logits computed in chunks, at the chosen tokens, equal those of the whole model."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import transformers
from distill.builtin.students.distilbert import from_teacher
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput

from distill.core.contracts import IGNORED, Outputs
from distill.kinds import Classification, MaskedLM
from distill.kinds.masked_lm import TokenScores
from distill.losses import Cosine, MaskedLanguageModelling, Objective, SegmentOrder, SoftTargets
from distill.models import decoding
from distill.models.forward import run_encoder, run_head, run_model
from distill.training.module import DistillationModule
from tests.conftest import live, outputs_at_items, toy_bert

VOCABULARY = 60
TASK = MaskedLM()
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 64, "max_position_embeddings": 80, "initializer_range": 0.3}  # fmt: skip
FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "bert": lambda: BertForMaskedLM(BertConfig(**SMALL)),
    "distilbert": lambda: from_teacher(BertForMaskedLM(BertConfig(**SMALL))),
    "roberta": lambda: transformers.RobertaForMaskedLM(transformers.RobertaConfig(**SMALL)),
    "electra": lambda: transformers.ElectraForMaskedLM(transformers.ElectraConfig(embedding_size=16, **SMALL)),
    "albert": lambda: transformers.AlbertForMaskedLM(transformers.AlbertConfig(embedding_size=16, **SMALL)),
    "deberta": lambda: transformers.DebertaV2ForMaskedLM(transformers.DebertaV2Config(**SMALL)),
    "modernbert": lambda: transformers.ModernBertForMaskedLM(
        transformers.ModernBertConfig(pad_token_id=0, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2,
                                      **{k: v for k, v in SMALL.items() if k != "max_position_embeddings"})
    ),
}  # fmt: skip


def batch_of(*, chosen: float = 0.4) -> dict[str, Tensor]:
    """Returns three sequences of up to seven tokens with some labels."""
    torch.manual_seed(0)
    ids = torch.randint(5, VOCABULARY, (3, 7))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    predicted = (torch.rand(ids.shape) < chosen) & mask.bool()
    return {
        "input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(~predicted, -100),
        "example_id": torch.arange(3),
    }  # fmt: skip


def language_model(positions: str = "masked") -> Objective:
    terms = {
        "soft": SoftTargets(weight=5, positions=positions),
        "mlm": MaskedLanguageModelling(weight=2),
        "cosine": Cosine(),
    }
    return Objective(name="language_model", terms=terms)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_over_some_tokens_equals_the_whole_model(family: str) -> None:
    torch.manual_seed(0)
    model, batch = FAMILIES[family]().eval(), batch_of()
    encoder = model.base_model
    with torch.no_grad():
        items, predicted = TASK.select(batch), batch["labels"] != IGNORED
        whole = run_model(model, batch).logits[predicted]
        encoded = run_encoder(model, batch)
        torch.testing.assert_close(run_head(model, encoded, encoded.last_hidden_state[predicted]).logits[0], whole)
        torch.testing.assert_close(decoding.run_encoder_pass(model, batch, items).at(items).logits, whole)
    assert model.base_model is encoder


def test_a_head_reads_the_attributes_of_the_encoder_and_does_not_change_the_model() -> None:
    class Watched(BertForMaskedLM):
        def __setattr__(self, name: str, value: object) -> None:
            assert not getattr(self, "closed", False), f"{name} is set"
            super().__setattr__(name, value)

        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> MaskedLMOutput:
            states = self.bert(input_ids, attention_mask)[0]
            return MaskedLMOutput(logits=states @ self.bert.embeddings.word_embeddings.weight.T)

    model, batch = Watched(BertConfig(**SMALL)).eval(), batch_of()
    model.closed = True
    with torch.no_grad():
        encoded = run_encoder(model, batch)
        states = encoded.last_hidden_state[0]
        logits = run_head(model, encoded, states).logits
    assert torch.equal(logits[0], states @ model.bert.embeddings.word_embeddings.weight.T)


@pytest.mark.parametrize("positions", ["masked", "all"])
@pytest.mark.parametrize("tokens_at_once", [1, 4])
def test_chunks_have_the_loss_and_the_gradient_of_the_whole(
    positions: str, tokens_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "CHUNK_LOGITS", tokens_at_once * VOCABULARY)
    teacher = BertForMaskedLM(BertConfig(**SMALL)).eval()
    student, batch, objective = from_teacher(teacher).eval(), batch_of(), language_model(positions)
    needs = frozenset({"hidden_states"})
    items = TASK.select(batch).with_every_token() if positions == "all" else TASK.select(batch)
    with torch.no_grad():
        teacher_outputs = outputs_at_items(run_model(teacher, batch, needs), items)
    expected, expected_sums = objective(
        outputs_at_items(run_model(student, batch, needs), items), teacher_outputs, items
    )
    gradients = torch.autograd.grad(expected, list(student.parameters()))
    seen: list[int] = []
    student.vocab_projector.register_forward_hook(lambda layer, inputs, output: seen.append(output.shape[1]))
    module = DistillationModule(student=student, objective=objective, task=TASK, signal=live(teacher, objective, TASK))
    student.eval()
    loss, sums = module.losses(batch)
    torch.testing.assert_close((loss, sums), (expected, expected_sums))
    loss.backward()
    for parameter, gradient in zip(student.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-5, rtol=1e-4)
    read = int((batch["labels"] != IGNORED if positions == "masked" else batch["attention_mask"]).sum())
    assert max(seen) <= tokens_at_once
    assert sum(seen) == read  # Not computed again for the gradient.


def test_soft_targets_of_all_tokens_ignore_padding() -> None:
    batch = batch_of(chosen=0.0)
    torch.manual_seed(1)
    student, teacher = torch.randn(2, 3, 7, VOCABULARY)
    term = SoftTargets(temperature=2, positions="all")
    items = TASK.select(batch).with_every_token()
    student_outputs, teacher_outputs = (Outputs(logits=v.flatten(0, 1)[items.index]) for v in (student, teacher))
    total, count = term(student_outputs, teacher_outputs, items)
    rows = batch["attention_mask"].bool()
    by_hand = 4 * F.kl_div((student[rows] / 2).log_softmax(-1), (teacher[rows] / 2).softmax(-1), reduction="sum")
    torch.testing.assert_close(total, by_hand)
    assert count == batch["attention_mask"].sum() == 18
    classes = {"attention_mask": batch["attention_mask"], "labels": torch.zeros(3, dtype=torch.long)}
    of_classes = Classification(text="text").select(classes).with_every_token()
    assert term.count(of_classes) == 3  # A classification has no other items.


def test_unknown_positions_are_refused() -> None:
    with pytest.raises(ValueError, match="got positions=some, expected masked or all"):
        SoftTargets(positions="some")


# Pairs


@pytest.mark.parametrize(
    ("create", "name"),
    [
        (lambda: BertForPreTraining(BertConfig(**SMALL)), "seq_relationship"),
        (lambda: transformers.AlbertForPreTraining(transformers.AlbertConfig(embedding_size=16, **SMALL)), "sop"),
    ],
    ids=["bert", "albert"],
)
def test_the_loss_includes_the_order_of_segments_and_the_tokens(
    create: Callable[[], PreTrainedModel], name: str
) -> None:
    torch.manual_seed(0)
    model, batch = create().eval(), batch_of()
    batch["pair_labels"] = torch.tensor([0, 1, -100])
    objective = Objective(name="pairs", terms={"mlm": MaskedLanguageModelling(), "nsp": SegmentOrder()})
    whole, predicted = run_model(model, batch), batch["labels"] != IGNORED
    expected = torch.stack([
        torch.nn.functional.cross_entropy(whole.prediction_logits[predicted], batch["labels"][predicted]),
        torch.nn.functional.cross_entropy(whole[f"{name}_logits"][:2], batch["pair_labels"][:2]),
    ]).sum()  # fmt: skip
    module = DistillationModule(student=model, objective=objective, task=TASK)
    model.eval()
    loss, _ = module.losses(batch)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    [head] = [weight for key, weight in model.named_parameters() if name in key and key.endswith("weight")]
    assert head.grad is not None
    assert head.grad.abs().sum() > 0


def test_segment_order_is_a_cross_entropy_over_pairs() -> None:
    output = Outputs(segment_logits=torch.tensor([[0.0, 0.0], [1.0, 3.0], [9.0, 9.0]]))
    items = TASK.select(batch_of() | {"pair_labels": torch.tensor([0, 1, -100])})
    total, count = SegmentOrder()(output, Outputs(), items)
    assert float(total) == pytest.approx(0.693147 + 0.126928, abs=1e-5)
    assert count == 2


# Scores


def test_scores_are_cross_entropy_and_top1_correctness() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0], [0.0, 5.0, 0.0]])
    labels = torch.tensor([[2, 1, IGNORED]])
    items = TASK.select({"labels": labels, "attention_mask": torch.ones_like(labels)})
    columns = TokenScores(TASK.settings).score(Outputs(logits=logits), items)
    assert list(columns) == ["loss", "prediction", "probability", "correct"]
    scores = torch.stack([columns["loss"], columns["probability"], columns["correct"]], dim=1)
    expected = torch.tensor([[1.098612, 1 / 3, 0.0], [0.013386, 0.986703, 1.0]])
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)
    assert columns["prediction"][1] == 1


def test_a_bert_without_tokens_to_predict_has_a_loss_of_zero_and_gradients() -> None:
    teacher = BertForMaskedLM(toy_bert(VOCABULARY).config).eval()
    student = from_teacher(teacher)
    objective = Objective(name="tokens", terms={"soft": SoftTargets(), "mlm": MaskedLanguageModelling()})
    module = DistillationModule(student=student, objective=objective, task=TASK, signal=live(teacher, objective, TASK))
    loss, _ = module.losses(batch_of(chosen=0.0))
    loss.backward()
    assert float(loss.detach()) == 0
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in student.parameters())
