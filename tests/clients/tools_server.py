"""A FastMCP server with one tool, over Streamable HTTP: `tools_server.py PORT`."""

import sys

from fastmcp import FastMCP

server = FastMCP("adder")


@server.tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


server.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False, log_level="warning")
