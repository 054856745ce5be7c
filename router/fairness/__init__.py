"""The order in which prompts of tenants are served."""
