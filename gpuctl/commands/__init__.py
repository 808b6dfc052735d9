"""One module a command: words to calls, results to text."""
