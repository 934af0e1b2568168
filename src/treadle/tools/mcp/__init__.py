"""The MCP client: `pool` is the adapter (RemoteTools), `client` and `exchange` are the seam to the official SDK.

Only those two and `results` import the SDK, and nothing imports them before the first server of tools is used: they
cost more than a second.
"""
