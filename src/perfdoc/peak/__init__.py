"""What this machine's devices reach, measured in seconds: GEMMs by dtype, memory and collective bandwidth."""
