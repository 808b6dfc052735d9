"""The lab's kernel and NVIDIA driver; `site/` goes on PYTHONPATH of lab processes."""
