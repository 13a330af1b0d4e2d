"""`lethe doctor`: looks at everything an installation keeps, and mends what can be mended without a person's word.

It runs beside coordinators at work. So whatever may be on its way (an upload, a deletion) is looked at twice before it
is called a fault, and what it mends it mends with the coordinators' own hands.
"""
