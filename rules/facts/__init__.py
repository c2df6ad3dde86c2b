"""What several rules ask of a case."""
