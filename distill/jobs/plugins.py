"""The registration of our plugins with Hydra."""

from hydra.core.plugins import Plugins

from distill.jobs.grid_sweeper import GridSweeper
from distill.jobs.optuna_sweeper import OptunaSweeper
from distill.jobs.ray_launcher import RayLauncher
from distill.jobs.table_sweeper import TableSweeper

# Hydra creates plugins of these names alone, wherever their classes are.
_PREFIX = "hydra_plugins.distill."


def register_plugins() -> None:
    """Makes our plugins known to Hydra. Their YAMLs are in `conf/hydra`."""
    for plugin in (GridSweeper, OptunaSweeper, RayLauncher, TableSweeper):
        Plugins.instance().class_name_to_class[_PREFIX + plugin.__name__] = plugin
