#!/bin/sh
# Installs the MCP servers from npm that the tests run against into DIR:   scripts/npm_servers.sh DIR
# Then:   TREADLE_NPM_SERVERS=DIR pytest tests/unit/tools/test_mcp_npm.py
set -eu
dir=${1:?usage: npm_servers.sh DIR}
mkdir -p "$dir"
npm install --prefix "$dir" --no-audit --no-fund --loglevel=error \
  @modelcontextprotocol/server-everything@2026 \
  @modelcontextprotocol/server-filesystem@2026 \
  supergateway@4
echo "TREADLE_NPM_SERVERS=$dir"
