"""Faults that a schedule, its routes or a kernel's protocol would have on the machine."""
