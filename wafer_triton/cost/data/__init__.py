"""Measurements on silicon, and the constants that are fitted on them; see README.md."""
