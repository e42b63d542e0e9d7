"""Algorithms as schedules: rounds of neighbour exchanges and local operations, and nothing else."""
