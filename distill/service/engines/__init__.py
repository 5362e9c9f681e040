"""Engines: the machines on which attempts of jobs run."""
