"""Tests of the options of a general stage on the command line: those that are refused in one line."""

from pathlib import Path

import pytest

from distill import __main__ as command_line

GENERAL = ("+student=distilbert", "student.init=general")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((*GENERAL, "student.general.token=5"), "error: there is no option student.general.token"),
        (
            (*GENERAL, "student.general.corpus=.", "adapt=task"),
            "error: student.init=general learns from the teacher before its fine-tuning, and adapt=task changes that",
        ),
        (
            ("+student=distilbert", "task=mlm", "teacher.cache.draws=-1"),
            "error: got teacher.cache.draws=-1, expected a whole number of at least 1 or null",
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_what_cannot_be_is_refused_in_one_line(
    options: tuple[str, ...], message: str, encoder_dir: Path, data_dir: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    task = [] if "task=mlm" in options else ["task=sst2", "task.max_length=32"]
    where = [f"task.data_dir={data_dir}", f"cache_dir={tmp_path / 'cache'}", f"output_dir={tmp_path / 'runs'}"]
    teacher = ["+teacher=pretrained", f"teacher.path={encoder_dir}"]
    monkeypatch.setattr("sys.argv", ["distill", *options, *task, *teacher, *where])
    assert command_line.main() == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(message)
