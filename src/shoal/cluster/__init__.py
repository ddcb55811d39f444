"""Shoal on a cluster: Ray runs one vector environment per node, and one learner reads their rollouts."""

from shoal.cluster.fleet import Fleet
from shoal.cluster.learner import ActorPolicy, FleetLearner
from shoal.cluster.messages import FleetRollout
from shoal.cluster.simulated import SimulatedCluster
from shoal.cluster.writers import Writers

__all__ = ["ActorPolicy", "Fleet", "FleetLearner", "FleetRollout", "SimulatedCluster", "Writers"]
