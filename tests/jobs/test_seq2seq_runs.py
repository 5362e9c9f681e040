"""Tests of whole jobs of a model that writes a text for a text at toy size: fine-tuned, distilled, and refusals."""

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from distill.builtin.teachers.vocabulary import train_bytes
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    PreTrainedTokenizerBase,
    T5Config,
    T5ForConditionalGeneration,
)

from tests.jobs.runs import Run, capture_runs, read_record, run_command

WORDS = ("one", "two", "three", "four", "five")
SMALL = (
    "task=seq2seq", "task.max_length=32", "task.max_target=32", "cache_dir={work}/cache", "output_dir={output}",
)  # fmt: skip
TRAINER = ("trainer.max_steps=4", "trainer.max_epochs=null", "trainer.batch_size=8", "trainer.precision=32-true",
           "trainer.accelerator=cpu", "export.enabled=false")  # fmt: skip
FINETUNE = ("teacher.finetune.max_steps=12", "teacher.finetune.max_epochs=null", "teacher.finetune.batch_size=8",
            "teacher.finetune.learning_rate=1e-2", "teacher.finetune.precision=32-true",
            "teacher.finetune.accelerator=cpu")  # fmt: skip


def tokenizer() -> PreTrainedTokenizerBase:
    made = train_bytes([" ".join(WORDS)] * 3, 270, 64)
    made.add_special_tokens({"pad_token": "<pad>"})
    return made


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pairs of words in the other order, a T5, a BART and a BERT with one vocabulary, and a cache."""
    root = tmp_path_factory.mktemp("work")
    (root / "data").mkdir()
    for split, number in (("train", 24), ("dev", 8)):
        rows = [
            f"{WORDS[i % 5]} {WORDS[(i * 3 + 1) % 5]} {i}\t{i} {WORDS[(i * 3 + 1) % 5]} {WORDS[i % 5]}"
            for i in range(number)
        ]
        (root / "data" / f"{split}.tsv").write_text("\n".join(["source\ttarget", *rows]), encoding="utf-8")
    made = tokenizer()
    size, pad, end = len(made), made.pad_token_id, made.eos_token_id
    torch.manual_seed(0)
    bart = dict.fromkeys(("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"), 2)
    models = {
        "t5": T5ForConditionalGeneration(
            T5Config(vocab_size=size, d_model=32, d_kv=8, num_heads=4, d_ff=64, num_layers=2, num_decoder_layers=2,
                     decoder_start_token_id=pad, pad_token_id=pad, eos_token_id=end)
        ),
        "bart": BartForConditionalGeneration(
            BartConfig(vocab_size=size, d_model=32, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64,
                       pad_token_id=pad, bos_token_id=end, eos_token_id=end, decoder_start_token_id=end,
                       forced_eos_token_id=end, **bart)
        ),
        "bert": BertForMaskedLM(
            BertConfig(vocab_size=size, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
        ),
    }  # fmt: skip
    for name, model in models.items():
        model.save_pretrained(root / name)
        made.save_pretrained(root / name)
    other = train_bytes(["six seven eight nine"] * 3, 270, 64)
    other.add_special_tokens({"pad_token": "<pad>"})
    models["t5"].save_pretrained(root / "other")
    other.save_pretrained(root / "other")
    return root


@pytest.fixture
def run(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command; returns its exit code, its output and the run's directory."""

    def run_options(output: Path, *options: str) -> int:
        common = [option.format(work=work, output=output) for option in SMALL]
        given = [option.format(work=work) for option in options]
        return run_command(*common, f"task.data_dir={work / 'data'}", *given)

    return capture_runs(partial(run_options), tmp_path, capsys)


@pytest.mark.parametrize(
    "layout",
    [
        "t5",
    ],
)
def test_a_teacher_is_fine_tuned_and_a_student_of_both_halves_learns_from_it(run: Run, layout: str) -> None:
    teacher = ("+teacher=pretrained", f"teacher.path={{work}}/{layout}")
    code, text, directory = run("job=finetune", *teacher, *FINETUNE)
    assert code == 0, text
    record = read_record(directory)
    metrics = record["teacher"]["metrics"]
    assert record["teacher"]["origin"] == "fine-tuned"
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]), rel=1e-4)
    assert metrics["loss"] < 5.3  # That of random weights is 5.6, the logarithm of 271 tokens.
    path = directory / "teacher" / "model"
    code, text, distilled = run(
        "+teacher=pretrained", f"teacher.path={path}", "+student=distilbert", "objective=seq2seq",
        "objective.terms.hard.smoothing=0.1", *TRAINER,
    )  # fmt: skip
    assert code == 0, text
    record = read_record(distilled)
    assert record["teacher"]["origin"] == "as it is"  # Its configuration says that it was trained.
    assert record["task"]["kind"] == "seq2seq"
    assert record["teacher"]["metrics"]["loss"] == pytest.approx(metrics["loss"], abs=1e-4)
    assert {"loss", "perplexity", "token_accuracy", "agreement_top1"} <= record["student"]["metrics"].keys()
    assert (distilled / "report.html").is_file()
    student = AutoModelForSeq2SeqLM.from_pretrained(distilled / "student")
    config = student.config
    assert config.num_hidden_layers == 1
    assert (config.num_decoder_layers if layout == "t5" else config.decoder_layers) == 1
    made = AutoTokenizer.from_pretrained(distilled / "student")
    batch = made("one two 3", return_tensors="pt")
    assert student.generate(**batch, max_new_tokens=4, do_sample=False).shape[0] == 1


def test_cached_outputs_give_nearly_the_student_of_a_teacher_that_runs(run: Run) -> None:
    options = ("+teacher=pretrained", "teacher.path={work}/t5", "teacher.finetune=false", "+student=distilbert",
               "objective=hinton", "baseline=false", *TRAINER)  # fmt: skip
    losses = []
    for enabled in ("true", "false"):
        code, text, directory = run(*options, f"teacher.cache.enabled={enabled}")
        assert code == 0, text
        record = read_record(directory)
        assert record["teacher_outputs"]["cached"] is (enabled == "true")
        assert record["teacher"]["origin"] == "as it is"
        losses.append(record["student"]["metrics"]["loss"])
    assert losses[0] == pytest.approx(losses[1], abs=0.05)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ("teacher.path={work}/bart", "task.max_target=100"),
            "task.max_target=100, but the teacher writes 64 tokens at most",
        ),
        (("teacher.path={work}/t5", "task.long_targets=never"), "got task.long_targets=never, expected cut or error"),
    ],
    ids=[
        "positions",
        "option",
    ],
)
def test_bad_input_is_reported_in_one_line(run: Run, options: tuple[str, ...], expected: str) -> None:
    student = () if "~student" in options else ("+student=distilbert",)
    chosen = (option for option in options if option != "~student")
    code, text, _ = run("+teacher=pretrained", *student, "objective=seq2seq", *TRAINER, *chosen)
    error = text.strip().splitlines()[-1]
    assert code == 2, text
    assert error.startswith("error: ")
    assert expected in error
