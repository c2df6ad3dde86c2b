"""Changes to a rebuilt step. They leave tasks where they are and compose in any number."""
