"""Tests of the teacher itself as the student."""

from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification

from distill.records.schema import read_record
from tests.conftest import run_here
from tests.golden.runs import golden_root
from tests.students.test_tfidf import CLASSIFIER

assert golden_root


def test_a_command_exports_the_teacher_without_a_step(golden_root: Path, tmp_path: Path) -> None:
    (tmp_path / "toys").symlink_to(golden_root / "toys")
    done = run_here(*CLASSIFIER.split(), "+student=teacher", "export.formats=[fp32]", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [directory] = (path.parent for path in tmp_path.rglob("run.json"))
    record = read_record(directory)
    assert record["training"] == record["training"] | {"steps": 0, "fitted": "the teacher as it is"}
    assert record["baseline_choice"]["reason"] == "the student is not trained"
    assert record["student"]["metrics"] == record["teacher"]["metrics"]
    models = [
        AutoModelForSequenceClassification.from_pretrained(path)
        for path in (tmp_path / "toys/classifier1", directory / "student")
    ]
    first, second = (model(input_ids=torch.tensor([[2, 5, 9, 3]])).logits for model in models)
    torch.testing.assert_close(first, second)


def test_a_teacher_of_a_file_is_no_student(golden_root: Path, tmp_path: Path) -> None:
    (tmp_path / "toys").symlink_to(golden_root / "toys")
    train, dev = ((tmp_path / f"toys/classes/{split}.tsv").read_text() for split in ("train", "dev"))
    rows = train + dev.partition("\n")[2]
    (tmp_path / "outputs.tsv").write_text(rows.replace("\t0", "\tnegative").replace("\t1", "\tpositive"))
    options = (
        f"{CLASSIFIER} +teacher=file teacher.path=outputs.tsv teacher.encoder=toys/encoder +student=teacher".split()
    )
    options = [option for option in options if option != "+teacher=pretrained" and "classifier1" not in option]
    done = run_here(*options, cwd=tmp_path)
    assert done.returncode == 2
    assert "student teacher is one fine-tuned teacher, and these are other ones" in done.stderr
