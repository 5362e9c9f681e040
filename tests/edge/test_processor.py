"""Tests of the kinds of processor that int8 files are written for."""

import pytest

from distill.core.errors import UserError
from distill.edge import bundle_files
from distill.edge.bundle import Bundle
from tests.edge.conftest import Patch, Write


@pytest.fixture(autouse=True)
def fresh_cache() -> object:
    bundle_files.this_target.cache_clear()
    yield
    bundle_files.this_target.cache_clear()


@pytest.mark.parametrize(
    ("machine", "features", "target"),
    [
        ("aarch64", set(), "arm64"),
        ("arm64", set(), "arm64"),
        ("x86_64", {"avx2", "avx512_vnni"}, "vnni"),
        ("x86_64", {"avx2", "avx_vnni"}, "vnni"),
        ("AMD64", {"avx512_clx"}, "vnni"),
        ("x86_64", {"avx2", "avx512f"}, "avx2"),
        ("riscv64", set(), "avx2"),
    ],
)
def test_the_target_follows_from_the_processor(
    monkeypatch: Patch, machine: str, features: set[str], target: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(bundle_files, "_features", lambda: features)
    assert bundle_files.this_target() == target


def test_seven_bits_are_right_everywhere_and_eight_where_dot_products_are() -> None:
    bits = {target: bundle_files.weight_bits(target) for target in bundle_files.TARGETS}
    assert bits == {"vnni": 8, "avx2": 7, "arm64": 8}
    right = {(target, device) for target in bundle_files.TARGETS for device in bundle_files.TARGETS
             if bundle_files.runs(target, device)}  # fmt: skip
    assert right == {(t, d) for t in bundle_files.TARGETS for d in bundle_files.TARGETS} - {
        ("vnni", "avx2"), ("arm64", "avx2"),
    }  # fmt: skip


def test_numpy_names_the_features_where_linux_does_not() -> None:
    assert bundle_files._numpy_features() is not None


def test_a_file_for_another_processor_is_refused_with_the_one_to_take(write: Write, monkeypatch: Patch) -> None:
    models = {"fp32": "model.onnx", "int8": "model.onnx", "int8-avx2": "model.onnx"}
    directory = write(models=models, recommended="int8", targets={"int8": "vnni", "int8-avx2": "avx2"})
    monkeypatch.setattr("distill.edge.bundle.this_target", lambda: "avx2")
    with pytest.raises(UserError) as error:
        Bundle(directory)
    assert str(error.value) == (
        f"{directory}: the model int8 is for processors of the kind vnni, and this one is avx2, on which int8 sums of "
        "it overflow: choose int8-avx2 or fp32"
    )
    assert len(Bundle(directory, model="int8-avx2").predict(["a"])) == 1
    monkeypatch.setattr("distill.edge.bundle.this_target", lambda: "arm64")
    assert len(Bundle(directory).predict(["a"])) == 1
