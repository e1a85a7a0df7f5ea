"""What the gateway is told: slots, keys, budgets, prices, workers, and the ledger of what came of it."""
