"""The rules, one file each, found by name: pdNNN_name.py with META and evaluate."""
