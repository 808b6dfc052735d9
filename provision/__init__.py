"""Observe, plan, apply, verify: a container's devices, its weights, its engine process."""
