"""The engine as a process: started, watched, stopped; the same on every machine without an init system."""
