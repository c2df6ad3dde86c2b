"""What runs the rules: what they look at, what they say, how verdicts become results."""
