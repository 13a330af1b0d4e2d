"""The keys that decide for how long stored objects can be read: a port with a directory as its back end.

Every object is encrypted with a key of its own, and that key is wrapped under the keys kept here: what a kernel makes
under the key of its cohort's epoch, what a client uploads under its own key and the epoch's together, what an operator
uploads under the federation's. To erase is to destroy keys, so they lie outside the database, the blobs and the backups
of both. See README.md.
"""
