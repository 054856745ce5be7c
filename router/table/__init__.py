"""What is known of replicas, as columns of numbers."""
