"""A container's GPU device nodes: what is, why it is broken after a reboot, and the smallest repair."""
