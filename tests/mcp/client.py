"""The official MCP client against a service: with the handshake of older versions, with the stateless requests of
2026-07-28, and with the example of `docs/mcp.md`, which is passed as the argument."""

import asyncio
import os
import runpy
import sys

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

url, key = os.environ["ORRERY_TEST_URL"], os.environ["ORRERY_TEST_KEY"]
expected = int(os.environ["ORRERY_TEST_TOOLS"])


async def check(mode):
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=mode) as client:
            server = client.server_info
            # Without a handshake, a server need not identify itself.
            assert mode != "legacy" or server.name == "orrery", server
            tools, cursor = [], None
            while True:
                page = await client.list_tools(cursor=cursor)
                tools += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert len(tools) == expected, len(tools)
            assert len({tool.name for tool in tools}) == expected
            greet = next(tool for tool in tools if tool.name == "workflow_greet")
            assert greet.input_schema["required"] == ["name"], greet
            told = []

            async def on_progress(progress, total, message):
                told.append((progress, message))

            made = await client.call_tool(
                "model_image-qr", {"text": "hello"}, progress_callback=on_progress
            )
            assert not made.is_error, made
            link = next(part for part in made.content if part.type == "resource_link")
            file = await http.get(str(link.uri))
            assert file.headers["content-type"] == link.mime_type == "image/png", link
            assert len(file.content) == link.size, link
            assert told == sorted(told), told
            greeted = await client.call_tool("workflow_greet", {"name": "Ada"})
            assert greeted.structured_content["output"]["result"] == "Ada", greeted
            refused = await client.call_tool("model_text-template", {})
            assert refused.is_error and "'template'" in refused.content[0].text, refused
            try:
                await client.call_tool("model_nobody", {})
                raise AssertionError("an unknown tool went unnoticed")
            except MCPError as error:
                assert "there is no tool" in str(error), error


for mode in ["legacy", "auto", "2026-07-28"]:
    asyncio.run(check(mode))
asyncio.run(runpy.run_path(sys.argv[1])["main"](url, key))
