"""One step of every rank as a picture: what each moment was, in few enough pieces to be drawn."""
