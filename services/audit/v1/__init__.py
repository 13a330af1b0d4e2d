"""The first version of certificates. Frozen: what was signed in this form is verified for ever, and none is made anew.

The living version builds on the parts that did not change; whoever has to change one defines it anew there.
"""
