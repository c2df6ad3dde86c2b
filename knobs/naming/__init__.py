"""Which knob a written name stands for, in which dialect."""
