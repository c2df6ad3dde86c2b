"""perfdoc beside Nsight Systems: as one of its recipes, and its own figures checked against perfdoc's."""
