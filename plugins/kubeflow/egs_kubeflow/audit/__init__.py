"""What a cluster has done, from what `kubectl get … -o json` exported of it, or asked of it. Changes nothing; imports
no kfp."""
