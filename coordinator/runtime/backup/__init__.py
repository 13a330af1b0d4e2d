"""Backups: database and blobs in one place, the directory of evidence with its keys in another, and the way back.

A backup of database and blobs never holds a key: what an erasure destroyed the keys of is noise in it. A copy of the
keys is replaced as a whole, and what is no longer in it is destroyed.
"""
