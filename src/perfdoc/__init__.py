"""perfdoc: where the time of a training step goes, and which knob to turn."""

__version__ = "0.1.0"
