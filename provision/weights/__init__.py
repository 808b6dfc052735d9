"""Bring model weights into memory: verified, resumable, visible only when complete."""
