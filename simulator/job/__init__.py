"""The whole job as a model of its stages, measured on the ranks at hand: what other settings would take."""
