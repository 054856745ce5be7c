"""What Baton knows of Kubernetes: the chart's values, and what KubeRay does with a change."""
