"""Stands for your program."""

import os

print("rank", os.environ.get("RANK"), "of", os.environ.get("WORLD_SIZE"))
