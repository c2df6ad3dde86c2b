"""What a user can mend."""

from __future__ import annotations


class VerifyError(ValueError):
    """Shown as one line."""
