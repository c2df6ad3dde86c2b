"""perfdoc as one of the recipes of Nsight Systems."""
