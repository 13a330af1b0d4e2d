"""Who takes part in a round: policies that draw from the members' names, and policies that learn about the clients."""
