"""The stages that only the top may build, since they need more than one of provision, checks and bench."""
