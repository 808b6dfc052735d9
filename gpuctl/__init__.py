"""Words to calls, results to text, errors to exit codes."""

__version__ = "0.1.0"
