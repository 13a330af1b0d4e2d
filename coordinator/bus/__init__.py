"""Wake-ups, live messages, liveness and a cache, in one process or across replicas. Never the only copy of anything."""
