"""The pure core: decide(state, message) -> events, evolve(state, event) -> state, react(event) -> commands."""
