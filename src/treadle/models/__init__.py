"""How to talk to model servers: dialects, vendors, routing and repairs."""
