"""Tests of the kinds of processor that int8 files are written for, and of the cores that a process may use."""

from pathlib import Path

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
    monkeypatch.setattr("distill.edge.bundle_files.this_target", lambda: "avx2")
    with pytest.raises(UserError) as error:
        Bundle(directory)
    assert str(error.value) == (
        f"{directory}: the model int8 is for processors of the kind vnni, and this one is avx2, on which int8 sums of "
        "it overflow: choose int8-avx2 or fp32"
    )
    assert len(Bundle(directory, model="int8-avx2").predict(["a"])) == 1
    monkeypatch.setattr("distill.edge.bundle_files.this_target", lambda: "arm64")
    assert len(Bundle(directory).predict(["a"])) == 1


count_cores = bundle_files.count_cores  # All other tests see one core.


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Eight processors, two of each core, of which the process may use the first six; no control groups."""
    for number in range(8):
        topology = tmp_path / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{number % 4},{number % 4 + 4}\n")
    monkeypatch.setattr(bundle_files, "TOPOLOGY", tmp_path)
    monkeypatch.setattr(bundle_files, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(bundle_files, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(bundle_files, "usable_processors", lambda: frozenset(range(6)))
    return tmp_path


def write_files(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_two_processors_of_one_core_count_once(machine: Path, monkeypatch: Patch) -> None:
    assert count_cores() == 4
    monkeypatch.setattr(bundle_files, "usable_processors", lambda: frozenset({1, 5}))
    assert count_cores() == 1
    monkeypatch.setattr(bundle_files, "TOPOLOGY", machine / "nowhere")  # The system does not tell.
    assert count_cores() == 2


def test_processors_are_those_of_the_affinity(monkeypatch: Patch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {3, 7}, raising=False)
    assert bundle_files.usable_processors() == {3, 7}
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert bundle_files.usable_processors() == {0, 1, 2}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"own": "0::/\n"}, 4),
        ({"own": "0::/\n", "cgroup/cpu.max": "max 100000\n"}, 4),
        ({"own": "0::/\n", "cgroup/cpu.max": "200000 100000\n"}, 2),
        ({"own": "0::/\n", "cgroup/cpu.max": "350000 100000\n"}, 3),
        ({"own": "0::/\n", "cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"own": "0::/\n", "cgroup/cpu.max": "1600000 100000\n"}, 4),
        ({"own": "0::/\n", "cgroup/cpu.max": "damaged\n"}, 4),
        # The quota of a group holds for those within it.
        ({"own": "0::/a/b\n", "cgroup/a/cpu.max": "300000 100000\n", "cgroup/a/b/cpu.max": "max 100000\n"}, 3),
        ({"own": "0::/a/b\n", "cgroup/a/cpu.max": "300000 100000\n", "cgroup/a/b/cpu.max": "100000 100000\n"}, 1),
        # A container whose group has the name that the host gives it.
        ({"own": "0::/docker/0123\n", "cgroup/cpu.max": "200000 100000\n"}, 2),
        ({"own": "0::/../other\n", "cgroup/cpu.max": "200000 100000\n"}, 2),
        ({"own": "4:cpu,cpuacct:/a\n", "cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "250000\n",
          "cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n"}, 2),
        ({"own": "4:cpuacct,cpu:/a\n", "cgroup/cpu/cpu.cfs_quota_us": "150000\n",
          "cgroup/cpu/cpu.cfs_period_us": "50000\n"}, 3),
        ({"own": "1:cpu:/\n0::/\n", "cgroup/cpu/cpu.cfs_quota_us": "-1\n", "cgroup/cpu/cpu.cfs_period_us": "100000\n"},
         4),
        ({"own": "9:cpuset:/\n", "cgroup/cpuset/cpu.cfs_quota_us": "1\n", "cgroup/cpuset/cpu.cfs_period_us": "1\n"}, 4),
    ],
)  # fmt: skip
def test_a_quota_limits_the_cores(machine: Path, files: dict[str, str], expected: int) -> None:
    write_files(machine, files)
    assert count_cores() == expected


def test_a_bundle_has_as_many_threads_as_the_process_may_use_cores(write: Write, monkeypatch: Patch) -> None:
    directory = write()
    original, seen = bundle_files._onnx_session, list[int]()
    monkeypatch.setattr(bundle_files, "count_cores", lambda: 3)
    monkeypatch.setattr(
        bundle_files, "_onnx_session", lambda path, threads: seen.append(threads) or original(path, threads)
    )
    assert (Bundle(directory).threads, Bundle(directory, threads=2).threads) == (3, 2)
    bundle_files.session(directory / "model.onnx")
    assert seen == [3, 2, 3]
    options = Bundle(directory).session.get_session_options()  # type: ignore[attr-defined]
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 1)
