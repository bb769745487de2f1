"""A server of the official SDK of Python with one tool, on its standard streams."""

from mcp.server import MCPServer

server = MCPServer("adder")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


server.run("stdio")
