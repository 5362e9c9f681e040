"""The golden runs, for the tests of bundles of each kind."""

from tests.golden.runs import golden_output, golden_root, golden_run

__all__ = ["golden_output", "golden_root", "golden_run"]
