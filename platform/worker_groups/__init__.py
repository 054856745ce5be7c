"""Worker groups of KubeRay follow the numbers of replicas."""
