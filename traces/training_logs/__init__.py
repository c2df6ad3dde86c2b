"""Logs as trainers print them: step times, what else a step's line says, and what says what ran."""
