"""The replicas that may compute a prompt, as the router knows them."""
