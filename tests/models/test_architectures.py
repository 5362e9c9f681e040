"""Tests of the model types of this package, which load in a program that has imported none of them."""

import json
import re
import subprocess
import sys
from pathlib import Path

from distill.builtin.students import cnn
from transformers import PreTrainedTokenizerBase

from distill.kinds import Classification
from distill.models.architectures import MODULES
from tests.conftest import toy_bert

MODELS = Path(__file__).parents[2] / "distill" / "models" / "architectures"


def test_every_model_type_has_its_module() -> None:
    found = {
        kind: path.stem
        for path in MODELS.glob("modeling_*.py")
        for kind in re.findall(r'^    model_type = "(\w+)"', path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert found == MODULES


def test_a_cnn_is_loaded_without_its_code(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    task = Classification(text="text", max_length=32)
    student = cnn.from_teacher(toy_bert(len(tokenizer)), task=task)
    student.save_pretrained(tmp_path / "cnn")
    tokenizer.save_pretrained(tmp_path / "cnn")
    for code in (tmp_path / "cnn").glob("*.py"):
        code.write_text("raise SystemExit('run')", encoding="utf-8")
    program = (
        "import sys; from pathlib import Path; from distill.models.loading import load_directory\n"
        "start = load_directory(Path(sys.argv[1]), 'AutoModelForSequenceClassification', ['a', 'b'],"
        " trust_remote_code=False)\n"
        "print(type(start.model).__module__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "cnn")], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "distill.models.architectures.modeling_cnn", done.stderr
    assert json.loads((tmp_path / "cnn" / "config.json").read_text())["model_type"] == "distill_cnn"
