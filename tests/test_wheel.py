"""Tests of the wheel: what is in it, how it is written, and how it runs where it is installed."""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from distill.core.errors import WHEEL
from distill.export import wheel
from distill.export.wheel import FOLDERS, write_wheel
from tests.edge.conftest import write_toy_bundle

ROOT = Path(__file__).parent.parent
# The tests share a wheel and a directory where it is installed.
pytestmark = pytest.mark.xdist_group("wheel")


def build(source: Path, directory: Path) -> Path:
    """Builds the wheel of a checkout as pip does, in a copy because that leaves files behind."""
    for name in ("distill", *FOLDERS):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    return directory / WHEEL


def install(file: Path, directory: Path) -> Path:
    """Installs a wheel alone into a new environment, which has the other packages from this one; returns its Python."""
    venv.create(directory, with_pip=False)
    [packages] = directory.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    python = directory / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "-q"]
    subprocess.run([*command, str(file)], check=True, capture_output=True)
    return python


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    names = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = {**names, "DISTILL_CACHE": str(cwd / "cache")}
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that pip builds from a checkout."""
    return build(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with that wheel."""
    return install(built, tmp_path_factory.mktemp("installed"))


def list_names(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def read_metadata(path: Path) -> dict[str, list[str]]:
    """Returns the fields that an installer reads, without those of extras."""
    with zipfile.ZipFile(path) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        message = HeaderParser().parsestr(archive.read(name).decode())
    fields = {name: message.get_all(name, []) for name in ("Name", "Version", "Requires-Python", "License-Expression")}
    needed = [value for value in message.get_all("Requires-Dist", []) if "extra" not in value]
    return {**fields, "Requires-Dist": needed, "Provides-Extra": sorted(message.get_all("Provides-Extra", []))}


def test_a_wheel_has_one_package_with_the_configuration_and_all_students_and_teachers(built: Path) -> None:
    names = list_names(built)
    assert {name.split("/")[0] for name in names} == {"distill", f"{WHEEL.removesuffix('-py3-none-any.whl')}.dist-info"}
    for folder, inside in FOLDERS.items():
        expected = {path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*.*") if path.suffix != ".pyc"}
        assert expected
        assert {f"distill/{inside}/{path.as_posix()}" for path in expected} <= names
    for pattern in ("*.py", "*.jinja", "*.html", "py.typed"):
        assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "distill").rglob(pattern)} <= names


def test_the_wheel_beside_a_bundle_is_that_of_pip(built: Path, tmp_path: Path) -> None:
    written = write_wheel(tmp_path)
    assert written == tmp_path / WHEEL
    assert list_names(written) == list_names(built)
    assert read_metadata(written) == read_metadata(built)
    with zipfile.ZipFile(written) as ours, zipfile.ZipFile(built) as other:
        assert ours.testzip() is None
        differing = {name for name in ours.namelist() if ours.read(name) != other.read(name)}
        assert {name.partition("/")[2] for name in differing} <= {"METADATA", "RECORD", "WHEEL"}


def test_equal_files_make_an_equal_wheel(tmp_path: Path) -> None:
    wheel._build_wheel.cache_clear()
    first = write_wheel(tmp_path)
    assert first is not None
    content = first.read_bytes()
    wheel._build_wheel.cache_clear()
    write_wheel(tmp_path)
    assert first.read_bytes() == content


def test_without_metadata_there_is_a_notice_and_no_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wheel, "PACKAGE", tmp_path / "distill")
    wheel._build_wheel.cache_clear()
    assert write_wheel(tmp_path) is None
    assert "no wheel for devices is written beside the bundle" in " ".join(capsys.readouterr().out.split())
    assert list(tmp_path.iterdir()) == []


def test_a_device_predicts_with_the_wheel_beside_the_bundle_and_without_torch(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    written = write_wheel(tmp_path)
    assert written is not None
    (tmp_path / "bundle").mkdir()
    write_toy_bundle(tmp_path / "bundle", tokenizer)
    python = install(written, tmp_path / "device")
    program = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'hydra', 'lightning'):\n"
        "    sys.modules[name] = None\n"
        "import distill\n"
        "from distill.edge import Bundle\n"
        "print(distill.__file__)\n"
        "print(len(Bundle(sys.argv[1]).predict(['the film'])))\n"
        "try:\n"
        "    distill.Teacher\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = run(python, "-c", program, tmp_path / "bundle", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    file, count, error = done.stdout.splitlines()
    assert (Path(file).is_relative_to(tmp_path / "device"), count) == (True, "1")
    command = f"pip install 'distill-encoders[train] @ {written.as_uri()}'"
    assert re.fullmatch(rf"distill\.Teacher needs \w+, which is not installed: {re.escape(command)}", error)


def test_an_installed_wheel_writes_itself(built: Path, python: Path, tmp_path: Path) -> None:
    program = "import sys, pathlib, distill.export.wheel as wheel; print(wheel.write_wheel(pathlib.Path(sys.argv[1])))"
    done = run(python, "-c", program, tmp_path, cwd=tmp_path)
    assert done.stdout == f"{tmp_path / WHEEL}\n", done.stderr
    assert list_names(tmp_path / WHEEL) == list_names(built)
    assert read_metadata(tmp_path / WHEEL) == read_metadata(built)


def test_an_installed_wheel_names_itself_for_an_extra(built: Path, python: Path, tmp_path: Path) -> None:
    program = "from distill.core.errors import install_command; print(install_command('serve'))"
    done = run(python, "-c", program, cwd=tmp_path)
    assert done.stdout == f"pip install 'distill-encoders[serve] @ {built.as_uri()}'\n", done.stderr


def test_another_package_students_in_the_working_directory_is_left_alone(python: Path, tmp_path: Path) -> None:
    for name in ("students", "teachers", "conf"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('a package of others')\n")
    done = run(python.with_name("distill"), "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "student: albert, bilstm, cnn, distilbert" in done.stdout


@pytest.mark.parametrize("command", ["script", "module"])
def test_in_a_checkout_its_own_package_runs_and_not_the_installed_one(
    command: str, python: Path, tmp_path: Path
) -> None:
    (tmp_path / "distill").mkdir()
    (tmp_path / "distill" / "__init__.py").write_text("name = 'the checkout'\n")
    (tmp_path / "distill" / "__main__.py").write_text(
        "import sys\nfrom distill import name\n\nprint(name, *sys.argv[1:])\nsys.exit(3)\n"
    )
    start = [python.with_name("distill")] if command == "script" else [python, "-m", "distill"]
    done = run(*start, "+student=mine", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "the checkout +student=mine\n"), done.stderr


@pytest.mark.slow
def test_the_student_of_the_documentation_is_trained_resumed_and_deployed(python: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    section = page.partition("### A student")[2].partition("### A loss")[0]
    files = re.findall(r"`((?:students|conf)/\S+\.(?:py|yaml))`[^`]*```\w+\n(.*?)```", section, re.S)
    assert [name for name, _ in files] == ["students/my_student.py", "conf/student/my_student.yaml"]
    for name, content in files:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(content)
    [line] = re.findall(r"^# python -m distill (.*)$", files[1][1], re.M)
    rows = [f"{'good' if row % 2 else 'bad'} film number {row},{row % 2}" for row in range(120)]
    (tmp_path / "films.csv").write_text("\n".join(["text,label", *rows]))
    toy = [
        "task=classification", "task.data_dir=films.csv", "task.text=[text]", "task.label=label", "augment=none",
        "trainer.max_steps=4", "teacher.accept_weak=true", "benchmark.enabled=false", "output_dir=runs",
        "+teacher=embedded", "teacher.finetune.max_epochs=1",
    ]  # fmt: skip
    given = [argument for argument in line.split() if argument != "+teacher=bert_base"]
    done = run(python.with_name("distill"), *given, *toy, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    [directory] = [path.parent for path in tmp_path.glob("runs/**/run.json")]
    record = json.loads((directory / "run.json").read_text())
    assert (record["status"], record["student"]["name"]) == ("finished", "my_student")
    assert f"pip install {WHEEL}" in (directory / "bundle" / "README.md").read_text(encoding="utf-8")

    resumed = run(python, "-m", "distill", f"resume={directory}", cwd=tmp_path)
    assert resumed.returncode == 2
    assert "add trust=[students]" in resumed.stderr
    resumed = run(python, "-m", "distill", f"resume={directory}", "trust=[students]", cwd=tmp_path)
    assert "no YAML of distill names" not in resumed.stderr

    device = install(directory / WHEEL, tmp_path / "device")
    done = run(device, "-m", "distill.edge", directory / "bundle", "--json", "a good film", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(json.loads(done.stdout)["label"]) in ("0", "1")
