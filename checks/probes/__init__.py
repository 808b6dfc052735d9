"""Readers of the machine, each an executed process of its own: a driver call that hangs takes only its probe down."""
