"""The job `publish`, which uploads the student and the bundle of a run to the Hugging Face Hub.

The repository has the student at its top, so that `from_pretrained("owner/name")` loads it, and `bundle/`.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig
from rich.filesize import decimal
from rich.table import Table

from distill.console import console, print_line, print_notice, silence_libraries
from distill.errors import OptionError, UserError, first_line
from distill.export.gate import recommended
from distill.jobs.overrides import refuse_other_options
from distill.options import show_value
from distill.records.collection import read_record
from distill.records.report import render_overview_card
from distill.storage import mirror
from distill.storage.files import CHECKSUMS, JsonObject, is_intact, write_text

CARD = "README.md"


@dataclass(frozen=True)
class Upload:
    """The files that go to a repository: each by its name there."""

    repo: str
    private: bool
    files: dict[str, Path]

    @property
    def bytes(self) -> int:
        """Returns the size of all files."""
        return sum(path.stat().st_size for path in self.files.values())


def run_publish(config: DictConfig) -> None:
    """Uploads the student and the bundle of `run` to `repo`, or with `dry_run` lists them.

    Raises:
        UserError: for options that have no effect, a run that cannot be published, and what the Hub refuses.
    """
    _check_options(config)
    run = mirror.local_path(config.run)
    mirror.fetch(run)
    card_text = _read_card(run, _check_run(run))
    with tempfile.TemporaryDirectory() as directory:
        card = Path(directory) / CARD
        write_text(card, _write_license(card_text, config.job.license))
        upload = Upload(config.repo, config.private, _list_files(run) | {CARD: card})
        _show(upload)
        if config.dry_run:
            print_line("Nothing was sent (dry_run=true)")
            return
        silence_libraries()
        print_line(f"Published  {_send(upload)}")


def _check_options(config: DictConfig) -> None:
    refuse_other_options("publish")
    if config.run is None:
        raise UserError("job=publish has no run: add run=DIR, the directory of a finished run of job=distill")
    if config.repo is None:
        raise UserError("job=publish has no repository to upload to: add repo=OWNER/NAME")
    _check_repo(config.repo)
    if not isinstance(config.private, bool):
        raise OptionError("private", show_value(config.private), "true or false")


def _check_repo(repo: str) -> None:
    """Raises UserError for a name that the Hub does not accept."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise OptionError("repo", show_value(repo), "owner/name in letters, digits, -, _ and .") from error
    if "/" not in repo:
        raise OptionError("repo", repo, "owner/name, with your name or that of an organization before the slash")


def _check_run(run: Path) -> JsonObject:
    """Returns the record of a run.

    Raises:
        UserError: for a run that is not finished, failed a gate, or is damaged.
    """
    record = read_record(run)
    if record["status"] != "finished":
        raise UserError(
            f"{run} is not finished, its status is {record['status']}: python -m distill resume={run} goes on with it"
        )
    sections = (record.get("tasks") or {"": record}).items()
    exports = {name: section["export"] for name, section in sections if section["export"]}
    for name, export in exports.items():
        if recommended(export) is None:
            failed = ", ".join(f"{file['file']} {file['gate']}" for file in export.values())
            raise UserError(
                f"no exported file of {run}{f' for {name}' if name else ''} passed its gate ({failed}): distil the "
                "student again with other options, or with export.enabled=false to publish it without a bundle"
            )
    if exports and record["teacher"].get("substituted"):
        print_notice(f"the teacher of {run} is a substitute, which the model card says")
    for name in ("student", *(["bundle"] if exports else [])):
        for directory in {path.parent for path in (run / name).rglob(CHECKSUMS)} or {run / name}:
            if not is_intact(directory):
                raise UserError(
                    f"{directory} is damaged or was changed, because its checksums do not match: run it again"
                )
    return record


def _read_card(run: Path, record: JsonObject) -> str:
    """Returns the model card of a run, or of several tasks an overview of their directories.

    Raises:
        UserError: for a run without a student.
    """
    if record.get("tasks") and (run / "student").is_dir():
        return render_overview_card(record, is_repository=True)
    card = run / "student" / CARD
    if not card.is_file():
        raise UserError(f"{run} has no student with a model card: give a run of job=distill")
    return card.read_text(encoding="utf-8")


def _list_files(run: Path) -> dict[str, Path]:
    """Returns the files of the student and of the bundle, and the wheel, by their names in the repository."""
    student, bundle = run / "student", run / "bundle"
    files = {path.relative_to(student).as_posix(): path for path in _walk(student) if path.name != CHECKSUMS}
    files |= {path.name: path for path in run.glob("*.whl")}
    return files | {f"bundle/{path.relative_to(bundle).as_posix()}": path for path in _walk(bundle)}


def _walk(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and not path.name.startswith("."))


def _write_license(card: str, license: str | None) -> str:
    """Returns a model card with this licence in its header; None leaves it as it is."""
    from huggingface_hub import ModelCard

    loaded = ModelCard(card, ignore_metadata_errors=True)
    if license is not None:
        loaded.data.license = license
    elif loaded.data.license is None:
        print_notice("the model card names no licence, because the teacher's is not known: job.license=NAME sets one")
    return str(loaded)


def _show(upload: Upload) -> None:
    """Prints the files with their sizes, and the repository."""
    table = Table("file", "size")
    table.columns[1].justify = "right"
    for name, path in sorted(upload.files.items()):
        table.add_row(name, decimal(path.stat().st_size))
    console.print(table)
    from huggingface_hub import constants

    visibility = "private" if upload.private else "public"
    print_line(
        f"{len(upload.files)} files, {decimal(upload.bytes)}, to {constants.ENDPOINT}/{upload.repo} "
        f"({visibility} if it is new)"
    )


def _send(upload: Upload) -> str:
    """Uploads the files in one commit; returns the address of the repository.

    Raises:
        UserError: without a token, and for what the Hub refuses.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, errors, get_token

    if get_token() is None:
        raise UserError("there is no token of the Hub: run `hf auth login`, or set HF_TOKEN to one that may write")
    api = HfApi(library_name="distill")
    try:
        url = api.create_repo(upload.repo, private=upload.private, exist_ok=True)
        operations = [CommitOperationAdd(name, str(path)) for name, path in sorted(upload.files.items())]
        api.create_commit(upload.repo, operations, commit_message="Upload the student and its bundle")
    except errors.OfflineModeIsEnabled as error:
        raise UserError("HF_HUB_OFFLINE is set, which forbids uploads: unset it") from error
    except (OSError, errors.HTTPError) as error:  # The base class of the errors of the client's HTTP library.
        raise UserError(
            f"the Hub refuses the upload to {upload.repo} or does not respond ({first_line(error)}): check that the "
            "name is yours and that the token may write"
        ) from error
    return str(url)
