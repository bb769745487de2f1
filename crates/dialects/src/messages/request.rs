//! Reads a request. Everything that the schema of the request allows can be expressed, so this never
//! fails.

use orrery_wire::messages::{
    self as wire, AssistantBlock, AssistantContent, CountRequest, CreateRequest, DocumentSource,
    ImageSource, InputMessage, OutputConfig, OutputFormat, PlainBlock, ResultContent, System,
    SystemBlock, ThinkingDisplay, UserBlock, UserContent,
};

use crate::{
    Effort, Format, Image, Message, Part, Reasoning, Request, Role, Thinking, Tool, ToolCall,
    ToolChoice,
};

/// Budgets of reasoning, in tokens, from which the effort is medium and high.
const MEDIUM_BUDGET: u64 = 4096;
const HIGH_BUDGET: u64 = 16_384;

/// Returns whether the client wants to see the reasoning.
#[must_use]
pub fn shows_thinking(request: &CreateRequest) -> bool {
    match &request.thinking {
        Some(wire::Thinking::Enabled { display, .. } | wire::Thinking::Adaptive { display }) => {
            *display != Some(ThinkingDisplay::Omitted)
        }
        Some(wire::Thinking::Disabled {}) | None => false,
    }
}

/// Reads a request for an answer.
#[must_use]
pub fn read(request: CreateRequest) -> Request {
    let CreateRequest {
        model,
        max_tokens,
        messages,
        system,
        tools,
        tool_choice,
        stop_sequences,
        temperature,
        top_p,
        top_k,
        stream,
        metadata,
        thinking,
        output_config,
        output_format,
        cache_control,
        service_tier: _,
    } = request;
    let prompt = CountRequest {
        model,
        messages,
        system,
        tools,
        tool_choice,
        thinking,
        output_config,
        output_format,
        cache_control,
    };
    Request {
        token_limit: Some(max_tokens),
        temperature,
        top_p,
        top_k,
        stops: stop_sequences.unwrap_or_default(),
        is_stream: stream.unwrap_or(false),
        user: metadata.and_then(|metadata| metadata.user_id),
        ..read_prompt(prompt)
    }
}

/// Reads the parts of a request that are in the prompt.
#[must_use]
pub fn read_prompt(request: CountRequest) -> Request {
    let (tool_choice, parallel_calls) = request.tool_choice.map_or((None, None), choice);
    let OutputConfig { effort, format } =
        request.output_config.unwrap_or(OutputConfig { effort: None, format: None });
    let format = format.or(request.output_format);
    Request {
        model: request.model,
        messages: request
            .system
            .map(system)
            .into_iter()
            .chain(request.messages.into_iter().map(message))
            .collect(),
        tools: request.tools.into_iter().flatten().map(tool).collect(),
        tool_choice,
        parallel_calls,
        format: format.map(|OutputFormat::JsonSchema { schema }| Format::JsonSchema {
            name: None,
            description: None,
            schema,
            is_strict: Some(true),
        }),
        // Anthropic's models reason only on request.
        thinking: request.thinking.map_or(Thinking::Off, |one| thinking(&one, effort)),
        ..Request::default()
    }
}

fn choice(choice: wire::ToolChoice) -> (Option<ToolChoice>, Option<bool>) {
    let (choice, is_single) = match choice {
        wire::ToolChoice::Auto { disable_parallel_tool_use } => {
            (ToolChoice::Auto, disable_parallel_tool_use)
        }
        wire::ToolChoice::Any { disable_parallel_tool_use } => {
            (ToolChoice::Required, disable_parallel_tool_use)
        }
        wire::ToolChoice::Tool { name, disable_parallel_tool_use } => {
            (ToolChoice::Named(name), disable_parallel_tool_use)
        }
        wire::ToolChoice::None {} => (ToolChoice::None, None),
    };
    (Some(choice), is_single.map(|is_single| !is_single))
}

fn thinking(thinking: &wire::Thinking, effort: Option<wire::Effort>) -> Thinking {
    let effort = effort.map(|effort| match effort {
        wire::Effort::Low => Effort::Low,
        wire::Effort::Medium => Effort::Medium,
        wire::Effort::High | wire::Effort::Xhigh | wire::Effort::Max => Effort::High,
    });
    match thinking {
        wire::Thinking::Enabled { budget_tokens, .. } => {
            Thinking::On(Some(effort.unwrap_or(match *budget_tokens {
                HIGH_BUDGET.. => Effort::High,
                MEDIUM_BUDGET.. => Effort::Medium,
                _ => Effort::Low,
            })))
        }
        wire::Thinking::Adaptive { .. } => Thinking::On(effort),
        wire::Thinking::Disabled {} => Thinking::Off,
    }
}

fn tool(tool: wire::Tool) -> Tool {
    Tool {
        name: tool.name,
        description: tool.description,
        parameters: tool.input_schema,
        is_strict: tool.strict,
    }
}

fn system(system: System) -> Message {
    let parts = match system {
        System::Text(text) => vec![Part::Text(text)],
        System::Blocks(blocks) => {
            blocks.into_iter().map(|SystemBlock::Text { text }| Part::Text(text)).collect()
        }
    };
    Message { role: Role::System, parts }
}

fn message(message: InputMessage) -> Message {
    match message {
        InputMessage::User { content } => Message {
            role: Role::User,
            parts: match content {
                UserContent::Text(text) => vec![Part::Text(text)],
                UserContent::Blocks(blocks) => blocks.into_iter().flat_map(of_user).collect(),
            },
        },
        InputMessage::Assistant { content } => Message {
            role: Role::Assistant,
            parts: match content {
                AssistantContent::Text(text) => vec![Part::Text(text)],
                AssistantContent::Blocks(blocks) => blocks.into_iter().map(of_assistant).collect(),
            },
        },
    }
}

fn of_user(block: UserBlock) -> Vec<Part> {
    match block {
        UserBlock::Text { text } => vec![Part::Text(text)],
        UserBlock::Image { source } => vec![Part::Image(image(source))],
        UserBlock::Document { source, title, context, citations: _ } => {
            let about: Vec<String> =
                [title, context].into_iter().flatten().filter(|text| !text.is_empty()).collect();
            let about = (!about.is_empty()).then(|| Part::Text(about.join("\n\n")));
            let parts = match source {
                DocumentSource::Text { data } => vec![Part::Text(data)],
                DocumentSource::Content { content } => result(content),
            };
            about.into_iter().chain(parts).collect()
        }
        UserBlock::ToolResult { tool_use_id, content, is_error } => vec![Part::ToolResult {
            id: tool_use_id,
            parts: content.map(result).unwrap_or_default(),
            is_error: is_error.unwrap_or(false),
        }],
    }
}

fn result(content: ResultContent) -> Vec<Part> {
    match content {
        ResultContent::Text(text) => vec![Part::Text(text)],
        ResultContent::Blocks(blocks) => {
            let plain = |block| match block {
                PlainBlock::Text { text } => Part::Text(text),
                PlainBlock::Image { source } => Part::Image(image(source)),
            };
            blocks.into_iter().map(plain).collect()
        }
    }
}

fn image(source: ImageSource) -> Image {
    match source {
        ImageSource::Base64 { media_type, data } => {
            Image::Data { media_type: media_type.as_str().to_owned(), base64: data }
        }
        ImageSource::Url { url } => Image::Url { url, detail: None },
    }
}

fn of_assistant(block: AssistantBlock) -> Part {
    match block {
        AssistantBlock::Text { text } => Part::Text(text),
        AssistantBlock::ToolUse { id, name, input } => {
            let arguments = serde_json::Value::Object(input).to_string();
            Part::ToolCall(ToolCall { id, name, arguments })
        }
        AssistantBlock::Thinking { thinking, signature } => {
            Part::Reasoning(Reasoning { text: thinking, signature })
        }
    }
}
