"""The files that a finished job leaves: its bundle, its student and its report."""

import io
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from distill.edge.manifest import NAME
from distill.edge.strings import shorten
from distill.errors import UserError
from distill.records import verdict as verdicts
from distill.records.collection import read_record
from distill.serve.refusals import RefusedError
from distill.service.results import describe_gates, list_runs, sections
from distill.storage.files import JsonObject

PART = 262_144  # Bytes of a file that are read at once.
REPORT = "report.html"


def choose_run(root: Path, name: str | None) -> Path:
    """Returns the directory of a run below `root`: the one of this name, or the only one.

    A part of a name is enough where one run alone has it: `bilstm` for `toy/minilm-bilstm/1`.

    Raises:
        RefusedError: if there is none, or several and no name.
    """
    runs = list_runs(root)
    if name is not None:
        return root / _find_run(runs, name)
    if not runs:
        raise RefusedError(409, "the job has no run yet: wait until it has finished")
    if len(runs) > 1:
        raise RefusedError(409, f"the job has {len(runs)} runs: add run=NAME, one of {', '.join(runs)}")
    return root / runs[0]


def _find_run(runs: Sequence[str], name: str) -> str:
    """Returns the run of a name, or else the only one that has it as a directory or, if none has, as a part."""
    by_directory = [run for run in runs if name in run.split("/")]
    found = [name] if name in runs else by_directory or [run for run in runs if name and name in run]
    if len(found) > 1:
        raise RefusedError(409, f"{len(found)} runs of the job have {shorten(name)}: {', '.join(found)}")
    if not found:
        raise RefusedError(404, f"the job has no run {shorten(name)}, expected one of {', '.join(runs) or 'none yet'}")
    return found[0]


def find_bundle(run: Path, *, force: bool = False) -> Path:
    """Returns the directory of a run's bundle, which is that of its baseline where that is the better student.

    Args:
        force: whether to return one of which no file passed its gate.

    Raises:
        RefusedError: if there is none, or no file passed its gate.
    """
    record = _read(run)
    decided = verdicts.decide(record) if record["task"] else None
    directory = run / (decided.bundle if decided and decided.bundle else verdicts.BUNDLE)
    if not any(directory.rglob(NAME)):
        if record["status"] == "running":
            raise RefusedError(409, "the bundle is not written yet: wait until the job has finished")
        raise RefusedError(404, "the run has no bundle: its student was not exported")
    reasons = [f"no file passed its gate: {reason}" for reason in map(_find_reason, sections(record)) if reason]
    if reasons and not force:
        raise RefusedError(409, f"{'; '.join(reasons)}; force=1 gives the bundle all the same")
    return directory


def _find_reason(record: JsonObject) -> str | None:
    decided = verdicts.decide(record) if record["task"] else None
    is_baseline = decided is not None and decided.bundle == verdicts.BASELINE_BUNDLE
    return describe_gates(record["baseline"]["export"] if is_baseline else record["export"])


def find_student(run: Path) -> Path:
    """Returns the directory of a run's student in torch.

    Raises:
        RefusedError: if there is none.
    """
    directory = run / "student"
    if not directory.is_dir():
        raise RefusedError(409, "the student is not written yet: wait until the job has finished")
    return directory


def find_report(root: Path, name: str | None) -> Path:
    """Returns the report of one run, or by default of the whole job, which for several runs is that of their sweep.

    Raises:
        RefusedError: if there is none.
    """
    of_sweep = root / "sweep" / REPORT
    path = of_sweep if name is None and of_sweep.is_file() else choose_run(root, name) / REPORT
    if not path.is_file():
        raise RefusedError(409, "the report is not written yet: wait until the job has finished")
    return path


def _read(run: Path) -> JsonObject:
    try:
        return read_record(run)
    except UserError as error:
        raise RefusedError(409, str(error)) from error


class _Parts(io.RawIOBase):
    """What a zip has written since it was last taken."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, part: object, /) -> int:
        content = bytes(part)  # type: ignore[call-overload]  # Any buffer.
        self._parts.append(content)
        return len(content)

    def take(self) -> bytes:
        content = b"".join(self._parts)
        self._parts.clear()
        return content


def stream_zip(directory: Path) -> Iterator[bytes]:
    """Yields a zip of a directory in parts of about `PART` bytes, while it is made.

    Files are stored as they are, because weights hardly shrink. Links are left out.
    """
    parts = _Parts()
    with zipfile.ZipFile(parts, "w", zipfile.ZIP_STORED) as archive:  # type: ignore[arg-type]  # It only writes.
        for path in sorted(directory.rglob("*")):
            if not path.is_file() or path.is_symlink() or path.name.startswith("."):
                continue
            entry = zipfile.ZipInfo.from_file(path, path.relative_to(directory).as_posix(), strict_timestamps=False)
            with open(path, "rb") as source, archive.open(entry, "w", force_zip64=True) as target:
                while part := source.read(PART):
                    target.write(part)
                    yield parts.take()
    yield parts.take()
