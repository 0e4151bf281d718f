"""Labels that Ray itself gives its nodes; they stand here because each worker that submits anything imports them."""

RAYS_OWN = "ray.io/"
ACCELERATOR = f"{RAYS_OWN}accelerator-type"
"""The kind of GPU."""
