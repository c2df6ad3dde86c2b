"""The peak of memory, what it is made of, and what lies idle in it."""
