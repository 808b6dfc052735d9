"""Facts about this machine turned into findings; a check never repairs."""
