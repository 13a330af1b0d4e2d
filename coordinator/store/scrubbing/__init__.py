"""What rows say about a client besides its name, and how an erasure takes it out.

A worker writes more than updates: why it failed and where, what machine it runs on, how well a model does on its data.
Every column that can hold words or figures is listed once: in columns.py with the rows (rows.py) and the part of
them (values.py) that a purge empties, or in unscrubbed.py with the reason why it holds nothing of a client's, or has to
stay. A test compares the lists with the tables, so that a new column cannot be forgotten.

Of a client that leaves, everything of its own goes. Of one that only forgets samples goes what it said before the
fence. Of the models that are purged, and of the updates that others trained from them, go the figures.

Names stay, as docs/erasure.md says. What is taken out is listed by an HMAC under the request's salt: whoever has the
salt and the words can show that they were there, and nobody can guess short ones.
"""
