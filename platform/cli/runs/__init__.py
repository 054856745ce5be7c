"""What the commands do once the model is found."""
