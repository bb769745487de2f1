"""The MCP SDK and FastMCP as clients of `/mcp`, and a FastMCP server with a tool for our agent."""

import httpx
import httpx2
from case import AGENT, KEY, case, equal, holds, run
from fastmcp import Client as FastClient
from fastmcp.client.transports import StreamableHttpTransport
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

HEADERS = {"Authorization": f"Bearer {KEY}"}


async def session(mode, work):
    async with httpx2.AsyncClient(headers=HEADERS, timeout=60) as http:
        async with Client(streamable_http_client(f"{AGENT}/mcp", http_client=http), mode=mode) as client:
            return await work(client)


async def use(client):
    names, cursor = [], None
    while True:
        page = await client.list_tools(cursor=cursor)
        names += [tool.name for tool in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            break
    holds("model_text-language" in names, names)
    made = await client.call_tool("model_text-language", {"text": "What a beautiful night it is!"})
    holds(not made.is_error and "en" in str(made.structured_content), made)
    refused = await client.call_tool("model_text-language", {})
    holds(refused.is_error, refused)


@case
async def handshake():
    await session("legacy", use)


@case
async def stateless():
    await session("2026-07-28", use)


@case
async def fastmcp():
    async with FastClient(StreamableHttpTransport(f"{AGENT}/mcp", headers=HEADERS)) as client:
        made = await client.call_tool("model_text-language", {"text": "What a beautiful night it is!"})
        holds("en" in str(made.structured_content), made)


@case
def tool_of_a_fastmcp_server():
    said = httpx.post(f"{AGENT}/chat", headers=HEADERS, json={"message": "use adder__add", "stream": False}, timeout=60)
    equal(said.status_code, 200)
    holds("6" in said.text and "done" in said.text, said.text)


run()
