"""Settings of what a run writes down."""

from pydantic.dataclasses import dataclass

from distill.options import STRICT, raise_option_errors


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
class RecordSettings:
    """Settings of the record of a run, the keys of `record` in `conf/config.yaml`.

    Args:
        texts: whether files in the run's directory may hold texts of the data; False leaves them out.
    """

    texts: bool = True
