"""Engines: the machines on which attempts of jobs run."""

from pathlib import Path

from distill.errors import UserError
from distill.service.engine import Engine

ENGINES = ("local", "ray", "slurm", "kubernetes")


def create_engine(name: str, directory: Path) -> Engine:
    """Returns the engine of a name for the directory of a service.

    Raises:
        UserError: if there is no such engine, its package is not installed, or there is no cluster.
    """
    if name == "local":
        from distill.service.engines.local import LocalEngine

        return LocalEngine(directory)
    if name == "ray":
        from distill.service.engines.ray import RayEngine

        return RayEngine(directory)
    if name == "slurm":
        from distill.service.engines.slurm import SlurmEngine

        return SlurmEngine(directory)
    if name == "kubernetes":
        from distill.service.engines.kubernetes import KubernetesEngine

        return KubernetesEngine(directory)
    raise UserError(f"got --engine {name}, expected one of {', '.join(ENGINES)}")
