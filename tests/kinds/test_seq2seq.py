"""Tests of texts for texts: T5 and BART beside transformers, students of both halves, batches, and the data."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from distill.builtin.students.distilbert import from_teacher
from torch import Tensor
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    T5Config,
    T5ForConditionalGeneration,
)

from distill.core.contracts import IGNORED, TARGET_MASK, Items, Outputs
from distill.core.errors import UserError
from distill.kinds import Seq2Seq
from distill.losses import Cosine, CrossAttention, HardLabels, HiddenStateMSE, SoftTargets, Term
from distill.models.compatibility import encoder_size
from distill.models.loading import load_directory
from distill.text.vocabulary import train_bytes, train_word_pieces
from distill.training.module import DistillationModule

VOCABULARY = 60
PAIRS = [{"source": "three one two", "target": "one two three"}, {"source": "two one", "target": "one two"}]
TASK = Seq2Seq(train=PAIRS, dev=PAIRS)
HALVES = frozenset({"hidden_states", "decoder_hidden_states", "cross_attentions"})


def t5(vocabulary: int = VOCABULARY) -> PreTrainedModel:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=vocabulary, d_model=32, d_kv=8, num_heads=4, d_ff=64, num_layers=4, num_decoder_layers=2,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return T5ForConditionalGeneration(config).eval()


def bart(vocabulary: int = VOCABULARY) -> PreTrainedModel:
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=vocabulary, d_model=32, encoder_layers=4, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=40, pad_token_id=1,
        bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2, init_std=0.3,
    )  # fmt: skip
    model = BartForConditionalGeneration(config).eval()
    model.final_logits_bias.normal_()  # Zero in a new BART, and not in its relatives.
    return model


every_layout = pytest.mark.parametrize("build", [t5, bart], ids=["t5", "bart"])


def batch_of(*, padding: int = 0) -> dict[str, Tensor]:
    """Returns three pairs of at most seven and five tokens, one shorter source and one shorter target."""
    random = torch.Generator().manual_seed(1)
    ids, labels = (torch.randint(3, VOCABULARY, (3, length), generator=random) for length in (7, 5))
    mask = torch.ones_like(ids)
    mask[1, 4:], labels[2, 3:] = 0, IGNORED
    return {
        "input_ids": F.pad(ids, (0, padding)), "attention_mask": F.pad(mask, (0, padding)),
        "labels": F.pad(labels, (0, padding), value=IGNORED), "example_id": torch.arange(3),
    }  # fmt: skip


def run(model: PreTrainedModel, batch: dict[str, Tensor], needs: frozenset[str] = HALVES) -> tuple[Items, Outputs]:
    items = TASK.select(batch)
    return items, TASK.run(model, batch, items, needs)


@every_layout
def test_the_outputs_of_both_halves_are_apart(build: Callable[[], PreTrainedModel]) -> None:
    model = build()
    implementation = model.config._attn_implementation
    _, outputs = run(model, batch_of())
    assert outputs.hidden_states is not None
    assert [tuple(states.shape) for states in outputs.hidden_states] == [(3, 7, 32)] * 5
    decoder = outputs.decoder
    assert decoder is not None
    assert decoder.hidden_states is not None
    assert [tuple(states.shape) for states in decoder.hidden_states] == [(3, 5, 32)] * 3
    assert decoder.cross_attentions is not None
    assert [tuple(layer.shape) for layer in decoder.cross_attentions] == [(3, 4, 5, 7)] * 2
    torch.testing.assert_close(decoder.cross_attentions[0].sum(dim=-1), torch.ones(3, 4, 5))
    assert decoder.cross_attentions[0][1, :, :, 4:].abs().max() == 0  # The padding of the source.
    assert model.config._attn_implementation == implementation


def copies(model: PreTrainedModel, student: PreTrainedModel) -> list[str]:
    """Returns the names of the tensors that the student does not have from where it says."""
    tensors, own = dict(model.named_parameters()), dict(student.named_parameters())
    inherited: dict[str, str] = student.inherited  # type: ignore[assignment]
    assert own.keys() == inherited.keys()
    return [name for name, source in inherited.items() if not torch.equal(own[name], tensors[source])]


@every_layout
def test_a_student_has_alternate_layers_of_both_halves(build: Callable[[], PreTrainedModel]) -> None:
    model = build()
    student = from_teacher(model)
    assert type(student) is type(model)
    size = encoder_size(student)
    assert (size.layers, size.decoder_layers) == (2, 1)
    assert student.config.teacher_layers == [0, 3]
    assert student.config.teacher_decoder_layers == [0]
    assert not copies(model, student)
    names = student.inherited.values()  # type: ignore[operator]
    assert {".3." in name for name in names if name.startswith(("encoder.", "model.encoder."))} == {False, True}
    if isinstance(model, BartForConditionalGeneration):
        assert torch.equal(student.final_logits_bias, model.final_logits_bias)


@every_layout
def test_the_depth_of_each_half_is_an_option(build: Callable[[], PreTrainedModel]) -> None:
    student = from_teacher(build(), layers="first", depth=3, decoder_depth=2)
    assert student.config.teacher_layers == [0, 1, 2]
    assert student.config.teacher_decoder_layers == [0, 1]
    chosen = from_teacher(build(), layers=[0, 2])  # Indices are those of the encoder.
    assert chosen.config.teacher_layers == [0, 2]
    assert chosen.config.teacher_decoder_layers == [0]
    with pytest.raises(UserError, match="student.decoder_depth=3 is out of range: the teacher's decoder has 2 layers"):
        from_teacher(build(), decoder_depth=3)


def test_the_layer_with_the_relative_positions_of_a_t5_stays_first_in_both_halves() -> None:
    with pytest.raises(UserError, match=r"student.layers=\[3\] puts layer 3 of a T5ForConditionalGeneration"):
        from_teacher(t5(), layers="last", depth=1)
    with pytest.raises(UserError, match=r"student.layers=\[1\] puts layer 1 of a T5ForConditionalGeneration"):
        from_teacher(t5(), layers="last", depth=4, decoder_depth=1)


def test_the_depth_of_a_decoder_is_refused_where_there_is_none() -> None:
    from transformers import BertConfig, BertForMaskedLM

    small = BertForMaskedLM(BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2))
    with pytest.raises(UserError, match="student.decoder_depth=1 is for a teacher with an encoder and a decoder"):
        from_teacher(small, decoder_depth=1)


@every_layout
@pytest.mark.parametrize(
    "term",
    [Cosine(part="decoder"), HiddenStateMSE(part="decoder"), CrossAttention(), Cosine(), HiddenStateMSE(),
     SoftTargets(positions="all")],
    ids=["decoder cosine", "decoder mse", "cross", "cosine", "mse", "soft"],
)  # fmt: skip
def test_terms_are_zero_for_the_teacher_itself_and_unchanged_by_padding(
    build: Callable[[], PreTrainedModel], term: Term
) -> None:
    model = build()
    student = from_teacher(model).eval()
    term.connect(encoder_size(student), encoder_size(model))
    values = []
    for padding in (0, 4):
        items, teacher = run(model, batch_of(padding=padding))
        items = items.with_every_token() if term.reads_every_token else items
        assert len(items) == 13
        student_outputs = run(student, batch_of(padding=padding))[1]
        total, count = term(student_outputs.at(items), teacher.at(items), items)
        values.append(float((total / count).detach()))
        assert total.requires_grad
    assert values[0] > 1e-4
    assert values[0] == pytest.approx(values[1], rel=1e-3)
    of_itself, _ = term(teacher.at(items), teacher.at(items), items)
    assert float(of_itself) == pytest.approx(0.0, abs=1e-4)


def test_the_value_of_cross_attention_by_hand() -> None:
    """One target token, two heads, two source tokens."""
    layers = [torch.tensor([[[[1.0, 0.0]], [[0.5, 0.5]]]]), torch.tensor([[[[0.5, 0.5]], [[0.5, 0.5]]]])]
    outputs = [Outputs(decoder=Outputs(cross_attentions=[layer])) for layer in layers]
    items = TASK.select({"labels": torch.tensor([[5]]), "attention_mask": torch.ones(1, 2)})
    total, count = CrossAttention()(*outputs, items)
    assert float(total) == pytest.approx(0.25)  # The mean of 0.25 + 0.25 and 0.
    assert int(count) == 1


def test_smoothed_labels_are_those_of_torch() -> None:
    _, outputs = run(t5(), batch_of())
    items = TASK.select(batch_of())
    logits = outputs.at(items).logits
    assert logits is not None
    total, count = HardLabels(smoothing=0.1)(Outputs(logits=logits), Outputs(), items)
    expected = F.cross_entropy(logits, items.labels, label_smoothing=0.1)
    assert float(total / count) == pytest.approx(float(expected), rel=1e-5)
    assert float(HardLabels()(Outputs(logits=logits), Outputs(), items)[0] / count) != pytest.approx(float(expected))


def test_smoothed_labels_leave_out_the_classes_that_an_item_cannot_have() -> None:
    logits, labels = torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([0])
    valid = torch.tensor([[True, True, False]])
    items = Items(batch={}, row=labels, labels=labels, labelled=torch.tensor([True]), valid=valid)
    total, _ = HardLabels(smoothing=0.2)(Outputs(logits=logits), Outputs(), items)
    expected = F.cross_entropy(logits[:, :2], labels, label_smoothing=0.2)
    assert float(total) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_a_smoothing_out_of_range_is_refused(smoothing: float) -> None:
    with pytest.raises(UserError, match="smoothing"):
        HardLabels(smoothing=smoothing)


def test_a_step_counts_the_tokens_of_sources_and_targets(tmp_path: Path) -> None:
    batch = TASK.encode(TASK.read(tmp_path), tokenizer(), None)["dev"][[0, 1]]
    tokens, computed, examples = DistillationModule._count_tokens([batch])
    assert tokens == int(batch["attention_mask"].sum() + (batch["labels"] != IGNORED).sum())
    assert computed == batch["attention_mask"].numel() + batch["labels"].numel()
    assert examples == 2


def tokenizer(*, ends: bool = False) -> PreTrainedTokenizerBase:
    """Returns one of bytes, which has one special token and puts none around a text, or BERT's with `[SEP]` as end."""
    if not ends:
        made = train_bytes(["one two three"] * 3, 270, 64)
        made.pad_token = made.eos_token
        return made
    made = train_word_pieces(["one two three"] * 3, 60)
    made.eos_token = made.sep_token
    return made


@pytest.mark.parametrize("ends", [False, True], ids=["appended", "own"])
def test_batches_have_two_lengths_and_targets_end(ends: bool, tmp_path: Path) -> None:
    made = tokenizer(ends=ends)
    examples = TASK.encode(TASK.read(tmp_path), made, tmp_path)["dev"]
    batch = examples[[0, 1]]
    labels, mask = batch["labels"], batch[TARGET_MASK]
    assert torch.equal(mask.bool(), labels != IGNORED)
    for row, target in enumerate(pair["target"] for pair in PAIRS):
        ids = labels[row][labels[row] != IGNORED].tolist()
        assert ids[-1] == made.eos_token_id
        assert made.decode(ids, skip_special_tokens=True) == target
    source, length = batch["attention_mask"].sum(dim=1), mask.sum(dim=1)
    assert examples.lengths.tolist() == (source + length).tolist()
    assert examples.items_per_example == pytest.approx(float(length.float().mean()))


def test_longer_targets_are_cut_with_their_number_and_still_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for made in (tokenizer(), tokenizer(ends=True)):
        task = Seq2Seq(train=PAIRS, dev=PAIRS, max_target=4)
        batch = task.encode(task.read(tmp_path), made, None)["dev"][[0]]
        assert batch["labels"].shape == (1, 4)
        assert batch["labels"][0, -1] == made.eos_token_id
    assert "dev: 1 of 2 targets have more than 4 tokens and are cut: raise task.max_target" in capsys.readouterr().out


def test_longer_targets_are_an_error_if_they_must_not_be_cut(tmp_path: Path) -> None:
    task = Seq2Seq(train=PAIRS, dev=PAIRS, max_target=4, long_targets="error")
    expected = "train: 1 of 2 targets have more than 4 tokens: raise task.max_target, or set task.long_targets=cut"
    with pytest.raises(UserError, match=expected):
        task.encode(task.read(tmp_path), tokenizer(ends=True), None)


def write_rows(directory: Path, name: str, rows: Sequence[dict[str, object]], *, splits: Sequence[str]) -> Path:
    for split in splits:
        path = directory / f"{split}.{name}"
        if name == "jsonl":
            path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        else:
            mark = "\t" if name == "tsv" else ","
            lines = [list(rows[0]), *(list(row.values()) for row in rows)]
            path.write_text("\n".join(mark.join(map(str, line)) for line in lines), encoding="utf-8")
    return directory


def test_rows_are_read_from_files(tmp_path: Path) -> None:
    write_rows(tmp_path, "csv", PAIRS, splits=("train", "dev"))
    data = Seq2Seq(data_dir=tmp_path, prefix="sort: ").read(tmp_path)
    assert data.splits["train"]["source"] == ["sort: three one two", "sort: two one"]
    assert data.splits["dev"]["target"] == ["one two three", "one two"]
    assert data.sha256 != Seq2Seq(data_dir=tmp_path).read(tmp_path).sha256


def test_every_reference_is_a_row_of_train_and_the_first_one_is_the_target_of_dev(tmp_path: Path) -> None:
    listed = [{"source": "a", "target": ["b", "c"]}, {"source": "d", "target": "e"}]
    written = [{"source": "a", "target": "b | c"}, {"source": "d", "target": "e"}]
    for suffix, rows, options in (("jsonl", listed, {}), ("tsv", written, {"separator": "|"})):
        directory = tmp_path / suffix
        directory.mkdir()
        write_rows(directory, suffix, rows, splits=("train", "dev"))
        data = Seq2Seq(data_dir=directory, **options).read(tmp_path)
        assert data.splits["train"]["source"] == ["a", "a", "d"]
        assert data.splits["train"]["target"] == ["b", "c", "e"]
        assert data.splits["dev"]["target"] == ["b", "e"]
        assert data.splits["dev"]["references"] == [["b", "c"], ["e"]]
        assert data.splits["dev"].records() == [{"source": "a", "target": "b"}, {"source": "d", "target": "e"}]


def test_a_part_of_the_texts_is_compared_with_the_references_of_its_rows(tmp_path: Path) -> None:
    rows = [{"source": source, "target": source.upper()} for source in "abc"]
    write_rows(tmp_path, "jsonl", rows, splits=("train", "dev"))
    data = Seq2Seq(data_dir=tmp_path, scored_texts=2, text_metrics=["exact_match"]).read(tmp_path)
    assert data.scoring.plain_texts(data.splits["dev"]) == ["a", "c"]
    assert data.scoring.text_metrics(data.splits["dev"], [{"text": "A"}, {"text": "C"}]) == {"exact_match": 1.0}


def test_a_source_without_a_target_is_refused_or_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(tmp_path, "tsv", [*PAIRS, {"source": "three", "target": ""}], splits=("train", "dev"))
    with pytest.raises(UserError, match=r"train.tsv, line 4: column target is .*expected text, and 1 of 3 rows lack"):
        Seq2Seq(data_dir=tmp_path).read(tmp_path)
    data = Seq2Seq(data_dir=tmp_path, missing="drop").read(tmp_path)
    assert len(data.splits["train"]) == 2
    assert "1 of 3 rows have no source or no target and are left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"text": "a", "target": "b"}], "has no column source"),
        ([{"source": "a", "label": "b"}], "has no column target"),
        ([{"source": "a", "target": 3}], "column target is 3, expected text, or a list of texts"),
        ([{"source": 3, "target": "a"}], "column source is 3, expected text"),
        ([{"source": "a", "target": "\ud800"}], "column target contains the unpaired surrogate"),
        ([{"source": "a", "target": [" "]}], "expected text, and 1 of 1 rows lack a source or a target"),
    ],
    ids=["no source", "no target", "number", "number as source", "surrogate", "empty list"],
)
def test_rows_that_cannot_be_used_are_refused(rows: list[dict[str, object]], expected: str, tmp_path: Path) -> None:
    write_rows(tmp_path, "jsonl", rows, splits=("train", "dev"))
    with pytest.raises(UserError, match=expected):
        Seq2Seq(data_dir=tmp_path).read(tmp_path)


def save(model: PreTrainedModel, made: PreTrainedTokenizerBase, directory: Path) -> Path:
    model.save_pretrained(directory)
    made.save_pretrained(directory)
    return directory


def test_a_vocabulary_without_an_end_or_padding_is_refused(tmp_path: Path) -> None:
    made = train_word_pieces(["one two three"] * 3, 60)
    directory = save(t5(len(made)), made, tmp_path / "end")
    with pytest.raises(UserError, match="has no eos_token, which ends each target: name one of its tokens"):
        load_directory(directory, TASK.info.auto_class, None, trust_remote_code=False)
    made.eos_token, made.pad_token = made.sep_token, None
    directory = save(t5(len(made)), made, tmp_path / "pad")
    with pytest.raises(UserError, match="has no padding token, which batches and bundles need"):
        load_directory(directory, TASK.info.auto_class, None, trust_remote_code=False)


def test_a_decoder_without_a_first_token_is_refused(tmp_path: Path) -> None:
    made, model = tokenizer(ends=True), t5()
    model.config.decoder_start_token_id = None
    directory = save(model, made, tmp_path)
    with pytest.raises(UserError, match="has no decoder_start_token_id, with which a decoder begins"):
        load_directory(directory, TASK.info.auto_class, None, trust_remote_code=False)
