"""FedForget: the leaver distils a teacher that has forgotten its answers while the others train; its weight fades."""
