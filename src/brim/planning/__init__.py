"""`MemoryPlan`: a ledger of line items per device, solved for what the user did not give."""
