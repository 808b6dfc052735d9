"""Programs that lab machines find on their PATH; each is a small client of the daemon."""
