"""One quick question to the Hugging Face Hub: is it there, and does it know this name?"""

from distill.errors import UnreachableError, UserError

SECONDS = 3.0


def ask(name: str, file: str, *, kind: str = "model", revision: str | None = None) -> None:
    """Return when the Hub has `file` of the `model` or `dataset` of this name; loading it may then begin.

    Loading straight away would retry for up to 80 seconds without a network.

    Raises:
        UserError: the Hub answers that it has no such thing, or not for this user.
        UnreachableError: the Hub does not answer within seconds, or it is switched off (HF_HUB_OFFLINE).
    """
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(name, file, repo_type=kind, revision=revision), timeout=SECONDS)
    except errors.HFValidationError as error:
        raise UserError(f"{name!r} is no name of the Hub: expected owner/name") from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        raise UserError(
            f"the Hub has no {kind} {name}{f' at {revision}' if revision else ''} with a {file}, or not for you: "
            "check the name, or set HF_TOKEN"
        ) from error
    except (OSError, errors.HTTPError) as error:  # The base class of the errors of the client's HTTP library.
        raise UnreachableError(f"the Hub does not answer: {error}") from error
