"""What a cluster has done, from what `kubectl get … -o json` exported of it. Reads files only; imports no kfp."""
