"""What the jobs on the host and in the container read; effects only, nothing is judged here."""
