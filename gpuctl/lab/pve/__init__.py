"""The lab's Proxmox VE HTTPS API: requests are checked against the recorded schema, answers follow recordings."""
