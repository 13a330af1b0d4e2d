"""Version 1 of the HTTP API: runs.py (what to train), work.py (what workers and coordinator say to each other),
exclusions.py (what workers leave out), resources.py (what operators see), erasure.py (what is to be forgotten)."""
