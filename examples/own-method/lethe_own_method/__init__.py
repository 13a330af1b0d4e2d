"""Scale the leaver's last update out of the model, then let the others train on."""
