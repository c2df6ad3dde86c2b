"""The version, apart from the package's face, so that whoever needs it imports nothing else."""

__version__ = "0.1.0"
