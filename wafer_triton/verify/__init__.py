"""What a schedule, its routes or a kernel's protocol would do wrong on the machine."""
