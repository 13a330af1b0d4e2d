"""The front door: the `lethe` command. The only room that may import coordinator and worker together."""
