"""Experiments: the coordinator and many clients in one process, under a virtual clock."""

from lethe.simulation.results import Results, Row
from lethe.simulation.run import Progress, simulate
from lethe.simulation.scenario import Scenario

__all__ = ["Progress", "Results", "Row", "Scenario", "simulate"]
