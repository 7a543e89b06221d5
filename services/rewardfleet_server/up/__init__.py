"""All services on one machine: their processes, and one address for them."""
