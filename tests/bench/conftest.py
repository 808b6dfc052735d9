"""The ground-truth server is in the kit: the command's tests use it, too."""

from truthkit import serve, wire

__all__ = ["serve", "wire"]
