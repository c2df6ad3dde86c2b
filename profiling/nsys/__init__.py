"""Nsight Systems as a program: running under it, collecting what it leaves, its own figures."""
