"""Laws of files: an exported bundle answers as torch does, and so does a student that was saved and is loaded again."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from distill.core.contracts import DECODER_INPUTS, TARGET_MASK
from distill.data.batches import evaluation_loaders
from distill.export.bundle_writer import write_bundle
from distill.models.forward import input_names
from distill.training.module import evaluate_splits
from tests.conftest import LOOSE
from tests.laws.conftest import MakeCell
from tests.laws.test_batches import CHOSEN, assert_equal, results
from tests.laws.toys import CELLS

# A graph takes seconds, so that a student has one for each way of reading a text, and one head of each form. Left out
# are several tasks, each with a bundle of its own, and models that predict tokens on both sides, or detect them.
EXPORTED = [
    *(("distilbert", kind) for kind in ("two texts", "tags", "answers", "choices", "vectors", "rankings", "masks")),
    ("layers", "two texts"), ("layers", "next token"), ("albert", "two texts"),
    ("bilstm", "two texts"), ("bilstm", "tags"), ("bilstm", "answers"), ("bilstm", "vectors"), ("cnn", "two texts"),
    ("cnn", "tags"), ("static", "two texts"), ("static", "vectors"), ("narrow", "classes"), ("local", "tags"),
    ("chunked", "classes"), ("halves", "targets"), ("halves", "words"), ("filling", "filled"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), EXPORTED)
def test_a_bundle_has_the_logits_of_torch_for_raw_texts(cell: MakeCell, kind: str, name: str, tmp_path: Path) -> None:
    of = cell(kind, name)
    assert of.data is not None
    scores = evaluate_splits(of.student, of.task, of.scoring, evaluation_loaders(of.examples))
    exported = write_bundle(
        tmp_path, model=of.student, tokenizer=of.tokenizer, task=of.task, splits=of.data, scores=scores,
        settings=replace(LOOSE, formats=("fp32",)),
    )  # fmt: skip
    for split, found in exported.scores["fp32"].items():
        column = "logits" if "logits" in found.columns else "loss"
        expected = scores[split].columns[column]
        assert np.ptp(expected) > 1e-2
        np.testing.assert_allclose(found.columns[column], expected, atol=2e-5, rtol=1e-4)


# Each of several heads is saved by itself.
SAVED = [(kind, name) for kind, name in CELLS if kind not in ("multi", "replaced")]
OWN_CODE = ("bilstm", "cnn", "static", "narrow", "local", "chunked", "filling")


@pytest.mark.parametrize(("kind", "name"), SAVED)
def test_a_saved_student_is_loaded_with_equal_outputs(cell: MakeCell, kind: str, name: str, tmp_path: Path) -> None:
    of = cell(kind, name)
    of.student.save_pretrained(tmp_path)
    loaded = getattr(transformers, of.task.info.auto_class).from_pretrained(tmp_path, trust_remote_code=True).eval()
    batch = of.examples["train"][CHOSEN]
    assert_equal(results(of, batch, loaded), results(of, batch))


PROGRAM = """
import sys, torch, transformers
sys.modules["distill"] = None
for directory, auto_class in zip(sys.argv[1::2], sys.argv[2::2]):
    model = getattr(transformers, auto_class).from_pretrained(directory, trust_remote_code=True).eval()
    with torch.no_grad():
        output = model(**torch.load(directory + "/inputs.pt"))
    torch.save(output[0], directory + "/output.pt")
"""


def test_students_with_code_of_their_own_are_loaded_where_distill_is_not(cell: MakeCell, tmp_path: Path) -> None:
    expected, arguments = {}, []
    for kind, name in [each for each in SAVED if each[1] in OWN_CODE] + [("both sides", "layers")]:
        of, directory = cell(kind, name), tmp_path / f"{name} {kind}"
        of.student.save_pretrained(directory)
        batch = of.examples["train"][CHOSEN]
        names = [*input_names(of.student), *({DECODER_INPUTS, TARGET_MASK} & batch.keys())]
        inputs = {name: batch[name] for name in names}
        torch.save(inputs, directory / "inputs.pt")
        with torch.no_grad():
            expected[directory] = of.student(**inputs)[0]
        arguments += [str(directory), of.task.info.auto_class]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PATH": "", "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for directory, output in expected.items():
        torch.testing.assert_close(torch.load(directory / "output.pt"), output, msg=directory.name)
