"""The lab's kernel and NVIDIA driver, as far as a Python process can see them."""
