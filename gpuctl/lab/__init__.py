"""The embedded host: a Proxmox-like machine on loopback made of as many real parts as possible."""
