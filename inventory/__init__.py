"""What exists and how to reach it: types, loader, secrets, SSH, Proxmox API, the error family."""
