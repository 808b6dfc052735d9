"""Command lines, read-back and metrics of the inference servers: one module each."""
