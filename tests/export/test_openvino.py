"""Tests of the formats for OpenVINO: their files, their gate, their padding, and what is refused without openvino."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distill.builtin.students.distilbert import from_teacher
from transformers import PreTrainedTokenizerBase

from distill.core.errors import OptionError, UserError, install_command
from distill.core.files import hash_file, write_json
from distill.edge import Bundle, web
from distill.edge.bundle_files import data_file, import_openvino, session, this_target
from distill.export import quantization
from distill.export.bundle_benchmark import list_formats
from distill.export.quantization import ExportSettings, RecipeInput, check_formats
from distill.records.verdict import recommend
from tests.conftest import sentences, toy_bert
from tests.edge.conftest import Output, Patch, write_toy_bundle
from tests.export.test_export import write
from tests.export.test_parity import run_file

needs_openvino = pytest.mark.skipif(
    find_spec("openvino") is None or find_spec("nncf") is None, reason="needs openvino and nncf, of the extra openvino"
)
NAMES = ("openvino", "openvino-int8", "openvino-full")
ENDINGS = tuple(f".{name}.xml" for name in NAMES)

pytestmark = pytest.mark.alone(last=True)  # A process that has run OpenVINO may die in a later test of training.


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerBase) -> tuple[Path, Any]:
    """A bundle with files for OpenVINO, and the `export` of run.json."""
    directory = tmp_path_factory.mktemp("openvino")
    student = from_teacher(toy_bert(len(tokenizer), layers=2), layers=[0, 1]).eval()
    rows = write(
        directory, student, tokenizer, max_drop=1.0, max_ece_rise=1.0, min_agreement=0.9, recipes=("dynamic",),
        formats=("fp32", "int8", "fp16", *NAMES),
    )  # fmt: skip
    return directory, rows


@needs_openvino
def test_a_bundle_has_files_for_openvino_by_the_same_gate(exported: tuple[Path, Any]) -> None:
    directory, rows = exported
    assert list(rows) == ["fp32", "int8", "fp16", *NAMES]
    manifest = json.loads((directory / "bundle.json").read_text())
    files = {path.name for path in directory.iterdir()} - {"bundle.json"}
    assert {"model.openvino.xml", "model.openvino.bin", "model.openvino-int8.bin", "model.openvino-full.bin"} < files
    assert manifest["files"] == {name: hash_file(directory / name) for name in files}
    for name in NAMES:
        path = directory / manifest["models"][name]
        assert rows[name]["bytes"] == path.stat().st_size + data_file(path).stat().st_size
        target = this_target() if name == "openvino-full" else "avx2"
        assert (rows[name]["gate"], rows[name]["target"]) == ("passed", target)
        assert 1e-6 < rows[name]["max_probability_diff"] < 0.2
        assert rows[name]["agreement"] > 0.9
        assert manifest["metrics"][name] == rows[name]["metrics"]
    # A device without openvino runs the recommended file, although others may be smaller.
    passed = {name: row | {"bytes": 1} if name in NAMES else row for name, row in rows.items()}
    assert manifest["recommended"] == recommend(passed) == "int8"
    assert recommend({name: passed[name] for name in NAMES}) is None


@needs_openvino
def test_files_for_openvino_predict_and_have_no_page(exported: tuple[Path, Any], tmp_path: Path) -> None:
    directory, rows = exported
    texts = [text for text, _ in sentences(24)]
    expected = Bundle(directory, model="fp32", threads=1).logits(texts)
    for name in NAMES:
        np.testing.assert_allclose(Bundle(directory, model=name, threads=1).logits(texts), expected, atol=0.5)
    assert list_formats(directory, None) == list(rows)
    for file in web.LIBRARIES.values():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    with pytest.raises(UserError, match="xml is for OpenVINO, which has no page: choose a model in ONNX such as"):
        web.write_page(Bundle(directory, model="openvino"), tmp_path / "page", libraries=tmp_path)


@needs_openvino
def test_a_file_for_openvino_is_near_torch_and_padding_changes_nothing(
    exported: tuple[Path, Any], monkeypatch: Patch
) -> None:
    reference, *files = (session(exported[0] / f"model{name}", 1) for name in (".onnx", *ENDINGS))
    # In float32 all differences are those of padding.
    monkeypatch.setattr("distill.edge.bundle_files.OPTIONS", {"INFERENCE_PRECISION_HINT": "f32"})
    exact = session(exported[0] / f"model{ENDINGS[0]}", 1)
    for lengths in ([1], [9, 9, 9], [40, 13, 1]):
        inputs = draw_inputs(lengths)
        expected, logits = run_file(reference, inputs), run_file(exact, inputs)
        largest = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(logits, expected, atol=0.02 * largest)
        for file, limit in zip(files, (0.15, 0.15, 0.3), strict=True):  # The last one rounds all activations.
            np.testing.assert_allclose(run_file(file, inputs), expected, atol=limit * largest)
        for row, length in enumerate(lengths):
            alone = {name: values[row : row + 1, :length] for name, values in inputs.items()}
            np.testing.assert_allclose(logits[row], run_file(exact, alone)[0], atol=2e-5 * largest)
    assert [len(file.get_outputs()) for file in files] == [1, 1, 1]


@needs_openvino
@pytest.mark.parametrize(("bits", "largest"), [(7, 64), (8, 127)])
def test_int8_of_weights_and_activations_has_the_bits_of_the_target_and_ignores_other_texts(
    exported: tuple[Path, Any], bits: int, largest: int, tmp_path: Path
) -> None:
    fed = []

    def feeds() -> list[dict[str, np.ndarray]]:
        fed.append(True)
        return [draw_inputs([13, 40, 5]) | {"token_type_ids": np.zeros((3, 40), dtype=np.int64)}]

    quantization.write_openvino_full(RecipeInput(exported[0] / "model.onnx", bits, feeds), tmp_path / "full.xml")
    model = import_openvino(tmp_path).Core().read_model(str(tmp_path / "full.xml"))
    int8 = [node for node in model.get_ops() if node.get_element_type().get_type_name() == "i8"]
    matrices = [node.data.astype(int) for node in int8 if find_reader(node) == "MatMul"]
    assert len(matrices) >= 2 * 6 + 1  # Of both layers and of the head.
    assert max(int(np.abs(values).max()) for values in matrices) in (largest, largest - 1)
    assert "Gather" in map(find_reader, int8)  # Tables of embeddings.
    assert [node for node in model.get_ops() if node.get_type_name() == "FakeQuantize"]  # Ranges of activations.
    assert fed == [True]
    file, inputs = session(tmp_path / "full.xml", 1), draw_inputs([40, 13, 1])
    together = run_file(file, inputs)
    for row, length in enumerate([40, 13, 1]):
        alone = {name: values[row : row + 1, :length] for name, values in inputs.items()}
        np.testing.assert_allclose(run_file(file, alone)[0], together[row], atol=0.02 * np.abs(together).max())


def find_reader(node: Any) -> str:
    """Returns the type of the operation that reads a constant with its scale."""
    while node.get_type_name() in ("Constant", "Convert", "Subtract", "Multiply", "Reshape"):
        [value] = node.output(0).get_target_inputs()
        node = value.get_node()
    return str(node.get_type_name())


def draw_inputs(lengths: list[int], *, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns random tokens of texts of these lengths."""
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    return {"input_ids": np.random.default_rng(seed).integers(5, 60, mask.shape) * mask, "attention_mask": mask}


@needs_openvino
def test_damaged_files_for_openvino_are_refused_with_the_reason(exported: tuple[Path, Any], tmp_path: Path) -> None:
    directory, _ = exported
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = tmp_path / "model.openvino.bin"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(UserError, match="openvino.bin is damaged: its SHA-256 is not the one in bundle.json"):
        Bundle(tmp_path, model="openvino")
    with pytest.raises(UserError, match="openvino.xml cannot be loaded by openvino: Incorrect weights in bin file!"):
        session(tmp_path / "model.openvino.xml")
    weights.unlink()
    with pytest.raises(UserError, match="is incomplete: model.openvino.bin is missing"):
        Bundle(tmp_path, model="openvino")


@needs_openvino
@pytest.mark.usefixtures("exported")
def test_openvino_and_nncf_are_imported_without_their_telemetry() -> None:
    """It would send a message about the import."""
    assert {"openvino", "nncf"} <= sys.modules.keys()
    assert not [name for name in sys.modules if name.startswith("openvino_telemetry")]


@pytest.fixture
def foreign(tmp_path: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: Patch) -> Path:
    """A bundle with a file for OpenVINO on a machine without openvino."""
    (tmp_path / "model.openvino.xml").write_text("<net/>")
    (tmp_path / "model.openvino.bin").write_bytes(b"weights")
    write_toy_bundle(tmp_path, tokenizer)
    content = json.loads((tmp_path / "bundle.json").read_text())
    content["models"]["openvino"] = "model.openvino.xml"
    for name in ("model.openvino.xml", "model.openvino.bin"):
        content["files"][name] = hash_file(tmp_path / name)
    write_json(tmp_path / "bundle.json", content)
    for name in [name for name in sys.modules if name.partition(".")[0] == "openvino"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.setattr("distill.edge.bundle_files.find_spec", lambda name: None)
    return tmp_path


def test_a_machine_without_openvino_runs_the_other_files(foreign: Path, capsys: Output) -> None:
    assert len(Bundle(foreign).predict(["a"])) == 1
    with pytest.raises(UserError) as error:
        Bundle(foreign, model="openvino")
    assert str(error.value) == (
        f"{foreign / 'model.openvino.xml'} needs openvino, which is not installed: pip install openvino, or choose a "
        "model in ONNX such as fp32"
    )
    assert list_formats(foreign, None) == ["fp32"]
    assert "openvino of" in " ".join(capsys.readouterr().out.split())
    assert list_formats(foreign, ["openvino"]) == ["openvino"]  # Which is then refused as above.
    content = json.loads((foreign / "bundle.json").read_text())
    del content["files"]["model.openvino.bin"]
    write_json(foreign / "bundle.json", content)
    with pytest.raises(UserError, match="bundle.json is damaged: files has no SHA-256 of model.openvino.bin"):
        Bundle(foreign)


def test_formats_are_refused_where_their_packages_are_missing(monkeypatch: Patch) -> None:
    monkeypatch.setattr(quantization, "find_spec", lambda name: None)
    check_formats(["fp32", "int8", "fp16"])
    with pytest.raises(UserError) as error:
        check_formats(["fp32", "openvino-int8"])
    assert str(error.value) == (
        f"export.formats has openvino-int8, which needs openvino and nncf: {install_command('openvino')}, or leave "
        "out openvino-int8"
    )
    with pytest.raises(
        OptionError, match=r"formats=\[int8\], expected fp32 too, from which others are made: \[fp32,int"
    ):
        ExportSettings(formats=("int8",))
