"""What a container's configuration file says, as Proxmox and LXC read it; pure."""
