"""The only SQL: tables and their invariants, transactions, the slices that messages need, and read queries."""
