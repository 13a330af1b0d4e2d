"""Which cohorts a run has: clusters, influence trees and their kin. Pure functions of names, numbers and seeds."""
