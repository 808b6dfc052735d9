"""What to change, and in which lines: from facts to steps; pure."""
