"""Requests to the Hugging Face Hub: a quick check that a file exists, and the loading of data sets."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distill.errors import UnreachableError, UserError, first_line

TIMEOUT_S = 3.0


def check_file(name: str, file: str, *, kind: str = "model", revision: str | None = None) -> None:
    """Checks that the Hub has `file` in the `model` or `dataset` called `name`.

    Without this check, a download without a network would be retried for up to 80 seconds.

    Raises:
        UserError: if the repository, revision or file does not exist, or this user has no access to it.
        UnreachableError: if the Hub does not respond within seconds, or HF_HUB_OFFLINE is set.
    """
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(name, file, repo_type=kind, revision=revision), timeout=TIMEOUT_S)
    except errors.HFValidationError as error:
        raise UserError(f"{name!r} is not a valid name on the Hub, expected owner/name") from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        at_revision = f" at revision {revision}" if revision else ""
        raise UserError(
            f"the Hub has no {kind} {name}{at_revision} with a file {file}, or you have no access to it: check the "
            "name, or set HF_TOKEN"
        ) from error
    except (OSError, errors.HTTPError) as error:  # The base class of the errors of the client's HTTP library.
        raise UnreachableError(f"the Hub does not respond: {error}") from error


@contextmanager
def _offline() -> Iterator[None]:
    """Makes `datasets` read its cache only. Later calls ask the Hub again, because one timeout says little."""
    import datasets

    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def load_dataset(hub_id: str, source: str, *, advice: str, streaming: bool = False, **options: object) -> Any:
    """Loads a data set `owner/name[@revision][:configuration]`, from the Hugging Face cache if the Hub is offline.

    The Hub keeps the data sets that a script makes as Parquet at the revision `refs/convert/parquet`.

    Args:
        source: name of the data set in the message of a UserError.
        advice: alternatives for a data set that is not available; follows "set task.data_dir=DIR" in the message.
        streaming: return an IterableDataset, also from the cache; requires the option `split`.

    Raises:
        UserError: if the data set cannot be loaded.
        UnreachableError: if it is not in the cache and cannot be downloaded.
    """
    import datasets

    repository, _, configuration = hub_id.partition(":")
    name, _, revision = repository.partition("@")
    if revision:
        options["revision"] = revision
    reachable = True
    try:
        # Every data set has this file.
        check_file(name, ".gitattributes", kind="dataset", revision=revision or None)
    except UnreachableError:
        reachable = False
    if streaming and reachable:
        options["streaming"] = True
    try:
        with contextlib.nullcontext() if reachable else _offline():
            loaded = datasets.load_dataset(name, configuration or None, **options)
    except (ConnectionError, FileNotFoundError) as error:
        raise UnreachableError(
            f"data set {hub_id} is not in the cache and cannot be downloaded from the Hub: set task.data_dir=DIR "
            f"{advice}"
        ) from error
    except (ValueError, RuntimeError, datasets.exceptions.DatasetGenerationError) as error:
        reason = first_line(error)
        raise UserError(f"{source} cannot be loaded: {reason}") from error
    if streaming and isinstance(loaded, datasets.Dataset):
        return loaded.to_iterable_dataset()
    return loaded
