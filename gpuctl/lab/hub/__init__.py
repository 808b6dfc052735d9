"""A local Hugging Face Hub: the real protocol on loopback, for the lab and for tests."""

from gpuctl.lab.hub.faults import Fault, FaultKind, Faults
from gpuctl.lab.hub.repo import HubRepo, smollm2_repo
from gpuctl.lab.hub.server import RunningHub, serve

__all__ = ["Fault", "FaultKind", "Faults", "HubRepo", "RunningHub", "serve", "smollm2_repo"]
