"""One service over HTTP: its replicas, requests until a deadline, and what they answered."""
