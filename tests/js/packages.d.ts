// The tests of client libraries are checked only when they run, because the libraries are installed only there.
declare module "@eachlabs/*";
declare module "@ai-sdk/*";
declare module "@anthropic-ai/*";
declare module "@langchain/*";
declare module "@modelcontextprotocol/*";
declare module "ai";
declare module "ollama";
declare module "openai";
declare module "openai/*";
declare module "replicate";
declare module "zod";
