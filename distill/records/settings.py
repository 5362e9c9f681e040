"""Settings of what a run writes down, and of its report."""

from pydantic import PositiveFloat
from pydantic.dataclasses import dataclass

from distill.options import STRICT, raise_option_errors
from distill.records.verdict import MARGIN


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
class RecordSettings:
    """Settings of the record of a run, the keys of `record` in `conf/config.yaml`.

    Args:
        texts: whether files in the run's directory may hold texts of the data; False leaves them out.
    """

    texts: bool = True


@raise_option_errors
@dataclass(frozen=True, config=STRICT)
class ReportSettings:
    """Settings of what a report says, the keys of `report` in `conf/config.yaml`.

    Args:
        margin: points of the metric within which two models are called equal, if the 95% interval of their difference
            lies within it; percent of a metric of which less is better.
    """

    margin: PositiveFloat = MARGIN
