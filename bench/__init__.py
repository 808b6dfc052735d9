"""Know the engines, drive load, turn samples into numbers."""
