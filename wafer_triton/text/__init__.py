"""Numbers as people read them. Any room may import it; it imports none."""
