"""The imperative shell around the engine: transactions, the outbox pump, timers, compute, settings. Only it commits."""
