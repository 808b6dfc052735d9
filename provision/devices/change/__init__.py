"""The jobs that change a host: its nodes, a configuration file, a running container's rules, the boot unit."""
