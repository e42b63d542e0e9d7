"""Time that a test makes pass."""


class Clock:
    """Stands in for the module `time`: its seconds pass only while something sleeps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def time(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
