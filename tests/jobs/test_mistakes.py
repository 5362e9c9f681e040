"""Tests that mistakes end a command in one line with exit code 2, and that interrupts and full disks are told.

The golden refusals have further ones. The commands run in this process on the toys of the golden commands.
"""

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import BartConfig, BartForConditionalGeneration, RobertaConfig, RobertaForMaskedLM

from distill.text.vocabulary import train_word_pieces
from tests.conftest import run_here, sentences, toy_bert
from tests.golden.commands import replace_options
from tests.golden.runs import golden_root
from tests.jobs.sweeps import wait_for_checkpoint
from tests.mask_predict import SIZES, make_model, make_tokenizer

assert golden_root

OUTPUT = "cache_dir=cache"
ROWS = f"+teacher=pretrained teacher.path=toys/encoder task=sst2 task.data_dir=toys/classes task.max_length=32 {OUTPUT}"
LABELLED = f"{ROWS} +student=distilbert trainer.max_steps=1"
CORPUS = f"task.data_dir=toys/corpus task.max_length=32 trainer.max_steps=1 {OUTPUT}"
PRETRAIN = f"job=pretrain +teacher=bert_tiny teacher.vocabulary=300 teacher.hidden_size=32 {CORPUS}"
PAIRS = "task.packing=segment_pair task.pair"
WRITER = (
    "+teacher=pretrained teacher.path=toys/bart +student=distilbert task=seq2seq "
    f"task.data_dir=toys/targets task.max_length=32 task.max_target=16 {OUTPUT}"
)
# The command that is right, and by what is changed in it, the message.
MISTAKES = {
    "labelled texts": (LABELLED, {
        "objective=pkd student.depth=1": "the term pkd leaves out the last layer, and the student has no other: set",
        "+student=pretrained student.path=mine/other objective=distilbert": "the term cosine compares the states of",
        "student.start=mine/other student.heads=2": "student.heads=2 is about the layers of the teacher, and",
        "student.start=mine/other export.vocabulary=trained": "export.vocabulary=trained takes rows of the",
        "+student=bilstm student.tokenizer=none": "student.tokenizer=none holds no tokenizer, expected a dir",
        "teacher.answers=[yes]": "teacher.answers=[yes,no] and teacher.prompt belong together: give both, or neither",
        "teacher.max_length=0": "teacher.max_length=0",
        "teacher.path=mine/bare": "holds no tokenizer: call tokenizer.save_pretrained",
        "+student=cnn student.hidden_dim=0": "error: got student.hidden_dim=0, expected a whole number of at least 1",
        "student.layers=3": "student.layers=3 is one number: student.depth=3 copies this many layers",
        "student.layers=[0,1] budget.ms=1": "budget.ms=1 tries every depth of student distilbert: student.depth=",
        "trainer.batch_size=null": "got neither batch_size nor batch_tokens",
        "trainer.batch_tokens=30": "got trainer.batch_tokens=30, expected at least task.max_length=32, the longest",
        "task.max_length=16 benchmark.max_lengths=[8,16]": "expected less than task.max_length=16, which is scored",
        "logger=[csv,wandb] logger.wandb.mode=online": "logger.wandb.mode=online needs a key of Weights & Biases",
        "export.calibration=100000": "got export.calibration=100000, and the task has",
        "adapt.add_words=500": "adapt.add_words=500 would change nothing with adapt=none: set adapt=domain",
        "student.init=general student.general.corpus=. adapt=task": "and adapt=task changes that",
        "teacher.beams=4": "teacher.beams=4 replaces the targets of texts, and task=sst2 has none",
        "objective=on_policy": "student_share of objective on_policy has the student write targets, and task=sst2",
        "output_dir=mine/file/runs": "cannot be created",
        "resume=true output_dir=others": "has no unfinished run of this configuration: leave out resume=true",
        "resume=true dry_run=true": "dry_run=true plans a new run: leave out resume",
        "export.patterns={email:null}": "expected null, because task sst2 (classification) tags no words",
        "export.patterns={order:a+}": "got export.patterns.order=a+: + at character 2 has no upper limit",
        "task=swag benchmark.dev_pass=true": "is for tasks whose examples are texts, and task=swag is multiple_choice",
        "task=embedding task.data_dir=mine/pairs objective=embedding": "dev has 2 pairs with the score 3 and no other",
        "task=embedding task.data_dir=toys/pairs objective=embedding task.cross_encoder=nowhere": (
            "task.cross_encoder is given, and no term of objective embedding learns from it"
        ),
    }),
    "finetune": (f"{ROWS} job=finetune", {
        "trainer.max_epochs=9": "trainer.max_epochs=9 would change nothing in job=finetune task=sst2: leave it out",
        "teacher.beams=4": "teacher.beams=4 has a teacher write the texts of a student, and job=finetune trains",
        "+student=distilbert": "+student=distilbert would change nothing in job=finetune",
    }),
    "pretrain": (f"{PRETRAIN} task=mlm", {
        f"{PAIRS}=nsp task.packing=full_sentences": "pairs need task.packing=segment_pair",
        f"{PAIRS}=nsp export.enabled=true": "a bundle fills the masks of single texts: set task.pair=null",
        "baseline=true": "baseline=true is for other tasks than task=mlm: +ablation=mlm_alone",
        "task=sst2 task.data_dir=toys/classes": "job=pretrain is not for task=sst2: take a task over text, task=mlm",
        "job=finetune": "teacher bert_tiny has random weights: job=pretrain trains it",
        "objective=language_model": "has the term soft, cosine, which learns from a teacher, and job=pretrain has none",
        "objective=embedding": "has the term embedding, similarity, which cannot learn task mlm (masked_lm): leave out",
        f"objective=spanbert {PAIRS}=nsp": "task.pair=nsp gives pairs of segments with a label (pair_labels), and no",
        f"objective=structbert {PAIRS}=sop": "the term order learns from pairs of segments in three orders",
    }),
    "text": (f"+teacher=pretrained task=mlm {CORPUS}", {
        "+student=distilbert teacher.path=mine/headless": "give it a head with python -m distill job=finetune task=mlm",
        "+student=distilbert +teacher=bert_tiny": "train it with python -m distill job=pretrain",
        "job=pretrain teacher.path=toys/encoder": "teacher pretrained is trained already: job=finetune trains it",
        f"job=finetune teacher.path=mine/roberta {PAIRS}=sop": "needs a model with a head for two segments, such as",
    }),
    "replaced tokens": (f"{PRETRAIN} task=rtd", {
        "export.enabled=true": "expected auto or false, because no bundle reads a model of task rtd (replaced_tokens)",
        "trainer.strategy=fsdp": "got trainer.strategy=fsdp, expected ddp, because the models of task=rtd share",
        "job=distill +student=distilbert": "job=distill is not for task=rtd, whose model is trained together with its",
    }),
    "causal": (f"+teacher=pretrained teacher.path=toys/gpt2 +student=layers task=clm {CORPUS}", {
        "teacher.beams=2 teacher.keep=nearest": "teacher.keep=nearest chooses by the target, and a text of task=clm",
        "export.formats=[fp32,openvino]": "expected none of openvino, because OpenVINO does not run the caches",
    }),
    "writers": (WRITER, {
        "task.max_target=100": "task.max_target=100, but the teacher writes 80 tokens at most",
        "teacher.keep=nearest": "got teacher.keep=nearest, expected 1 without teacher.beams",
        "teacher.beams=4 baseline=true": "teacher.beams=4 puts the teacher's texts in the place of the labels",
        "teacher.sampling_seed=3": "got teacher.sampling_seed=3, expected 0 without teacher.sampling_temperature",
        "teacher.sampling_temperature=0": "got teacher.sampling_temperature=0, expected a number above 0",
        "teacher.sampling_temperature=1.0 teacher.beams=4": "expected a search or a sampling",
        "task=mask_predict objective=seq2seq": "the term soft compares outputs with those of the teacher, which writes",
        "task=mask_predict objective=mask_predict teacher.path=mine/filled +student=mask_predict": (
            "fills all tokens of a target at once, and teaches no model: take one that"
        ),
        "task=mask_predict objective=mask_predict teacher.path=mine/untrained +student=mask_predict": (
            "train it with python -m distill job=finetune task=seq2seq"
        ),
        "objective=mask_predict": "the term length learns from the lengths of targets with masks (task=mask_predict)",
    }),
}  # fmt: skip


@pytest.fixture(scope="module")
def root(golden_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the golden toys, and models and data of a user."""
    root = tmp_path_factory.mktemp("mistakes")
    (root / "toys").symlink_to(golden_root / "toys")
    words, others = (train_word_pieces([text[::step] for text, _ in sentences(64)], 200) for step in (1, -1))
    size = max(len(words), len(others))
    targets = make_tokenizer()
    roberta = RobertaConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        pad_token_id=words.pad_token_id,
    )  # fmt: skip
    models = {
        "other": (toy_bert(size, layers=1), others), "bare": (toy_bert(size, layers=1), None),
        "headless": (toy_bert(len(words), layers=1).bert, words), "roberta": (RobertaForMaskedLM(roberta), words),
        "filled": (make_model(), targets), "untrained": (BartForConditionalGeneration(BartConfig(**SIZES)), targets),
    }  # fmt: skip
    for name, (model, tokenizer) in models.items():
        model.save_pretrained(root / "mine" / name)
        if tokenizer is not None:
            tokenizer.save_pretrained(root / "mine" / name)
    (root / "mine" / "file").touch()
    (root / "mine" / "pairs").mkdir()
    for split, score in (("train", 1), ("dev", 3)):
        rows = ["sentence1\tsentence2\tscore", f"a b\ta\t{score}", "b\tb a\t3"]
        (root / "mine" / "pairs" / f"{split}.tsv").write_text("\n".join(rows))
    return root


@pytest.mark.parametrize("name", MISTAKES)
def test_bad_input_is_reported_in_one_line(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETRC", str(root / "netrc"))  # Without keys.
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    command, mistakes = MISTAKES[name]
    wrong = {}
    for options, expected in mistakes.items():
        done = run_here(*replace_options(command, options), cwd=root)
        lines = done.stderr.strip().splitlines()
        if done.returncode != 2 or len(lines) != 1 or not lines[0].startswith("error: ") or expected not in lines[0]:
            wrong[options] = lines
    assert wrong == {}


def test_a_full_disk_is_reported_in_one_line_and_leaves_no_partial_checkpoint(root: Path) -> None:
    """Limits the size of a file to less than that of the teacher's first checkpoint."""
    options = replace_options(LABELLED, "teacher.finetune.max_steps=2 output_dir=full cache_dir=full")
    done = subprocess.run(
        [sys.executable, "-m", "distill", *options], cwd=root, capture_output=True, text=True, check=False, timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: there is no room left to write in output_dir=")
    assert "Traceback" not in done.stderr
    assert not [path for path in (root / "full").rglob("*") if ".ckpt" in path.name]


def test_a_directory_is_removed_if_the_disk_is_full(tmp_path: Path) -> None:
    """Limits the size of a file so that only the second one of the directory fails."""
    program = (
        "import resource, pathlib, sys\n"
        "from distill.core.files import is_full_disk, atomic_directory\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    with atomic_directory(pathlib.Path('cache/teacher')) as draft:\n"
        "        (draft / 'small').write_bytes(bytes(10))\n"
        "        (draft / 'large').write_bytes(bytes(5000))\n"
        "except OSError as error:\n"
        "    sys.exit(7 if is_full_disk(error) else 8)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 7, done.stderr
    assert list((tmp_path / "cache").iterdir()) == []


def test_ctrl_c_reports_the_checkpoint_and_how_to_resume(root: Path) -> None:
    options = replace_options(f"{ROWS} job=finetune", "output_dir=stopped cache_dir=stopped/cache")
    process = subprocess.Popen(
        [sys.executable, "-m", "distill", *options, "teacher.finetune.max_epochs=2000", "teacher.finetune.batch_size=8",
         "teacher.finetune.checkpoint_steps=1"],
        cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # A test run in the background ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        directory = wait_for_checkpoint(root / "stopped", process)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == 130, error
    last = error.strip().splitlines()[-1]
    assert "Stopping after this step" in error
    assert "teacher/checkpoints/last.ckpt holds the training so far; python -m distill resume=" in last
    assert f"resume={directory.relative_to(root)}" in last
    assert "Traceback" not in error
    assert json.loads((directory / "run.json").read_text())["error"] == "interrupted"
