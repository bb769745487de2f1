//! Descriptions of a manifest's keys, for editors and for the reference documentation.

use serde_json::Value;

/// The description of each key, by the key's path. A key that several runner types share has one
/// description.
const MEANINGS: &[(&str, &str)] = &[
    ("slug", "The name of the model in requests."),
    ("title", "The name that people see; by default the slug."),
    ("description", "A description of the model, for people and for the agent."),
    ("output_type", "What the model returns. Images, audio, videos and files are stored as files."),
    (
        "concurrency",
        "The maximum number of active runs. Further runs wait in the model's own queue.",
    ),
    ("timeout", "The time limit of one run, such as `120s`."),
    ("queue_limit", "The length of the queue. If the queue is full, new predictions return 429."),
    ("request_schema", "The JSON Schema of the input; without this key, any object is accepted."),
    (
        "request_schema_file",
        "A file with the JSON Schema of the input, in the folder of the manifest.",
    ),
    ("cost", "What a run costs. Without this table, nothing is charged."),
    ("cost.type", "`fixed`: a price for each success. `usage_based`: by time or by tokens."),
    ("cost.amount", "The price of each success, in US dollars."),
    (
        "cost.report",
        "A JSON pointer to the cost in US dollars in a response, which replaces the computed cost.",
    ),
    ("cost.estimate", "A note about the price, shown in the catalog."),
    ("cost.per_second", "The price of a second, in US dollars."),
    ("cost.per_million_input_tokens", "The price of a million tokens of input, in US dollars."),
    ("cost.per_million_output_tokens", "The price of a million tokens of output, in US dollars."),
    (
        "cost.per_million_cached_input_tokens",
        "The price of a million input tokens that the model read from its cache, in US dollars. \
         Without this key, cached tokens cost the same as other input tokens.",
    ),
    (
        "cost.per_million_reasoning_tokens",
        "The price of a million reasoning tokens, in US dollars. Without this key, reasoning \
         tokens cost the same as other output tokens.",
    ),
    ("cost.per_audio_minute", "The price of a minute of transcribed audio, in US dollars."),
    ("cost.per_million_characters", "The price of a million characters of speech, in US dollars."),
    ("cost.per_image", "The price of an image, in US dollars."),
    ("retry", "Whether and when the service repeats failed predictions."),
    ("retry.max_attempts", "The number of attempts, including the first."),
    ("retry.initial_delay_seconds", "The delay before the second attempt."),
    ("retry.backoff_multiplier", "The factor by which each further delay grows."),
    ("retry.max_delay_seconds", "The longest delay."),
    ("retry.retry_on", "The error classes after which another attempt is made."),
    (
        "cache",
        "Keeps the results of successful runs. A request with the same input gets the kept result, \
         at no cost.",
    ),
    ("cache.ttl", "How long a result is used, such as `1h`."),
    (
        "cache.scope",
        "`organization`: all API keys of an organization share the results. `key`: each key has \
         its own.",
    ),
    ("runner", "How the model runs."),
    ("runner.type", "The type of the runner, which determines the other keys."),
    ("runner.name", "The built-in model."),
    ("runner.url", "The address of the server."),
    ("runner.urls", "The addresses of several servers, in place of `url`."),
    ("runner.urls[].url", "The address of a server."),
    ("runner.urls[].weight", "The share of the requests, relative to the other servers."),
    ("runner.urls[].concurrency", "How many requests the server gets at once."),
    ("runner.health", "The path at which a server returns a success status when it is ready."),
    (
        "runner.start",
        "The command of the server, which this service starts and stops. `${PORT}` is a free port.",
    ),
    (
        "runner.working_dir",
        "The folder in which the server starts; by default, the folder of the manifest.",
    ),
    ("runner.environment", "Additional environment variables of the server. `PORT` is always set."),
    ("runner.start_timeout", "How long the server may take to become ready."),
    ("runner.stop_timeout", "How long the server may take to exit after SIGTERM."),
    ("runner.group", "The group of the configuration whose memory the server takes."),
    ("runner.memory", "How much memory of its group the server takes; by default, all of it."),
    ("runner.method", "The HTTP method."),
    ("runner.headers", "Additional headers; `${file:…}` and `${env:…}` insert secrets."),
    (
        "runner.body",
        "The body, with references to the input; without this key, the entire input is sent.",
    ),
    (
        "runner.multipart",
        "The fields of a form that is sent instead of `body`; values can refer to the input.",
    ),
    (
        "runner.files",
        "The fields of `multipart` whose values refer to files: URLs and `data:` URIs.",
    ),
    (
        "runner.poll",
        "How to poll the state of a job, for servers that accept a job and return its ID at once.",
    ),
    ("runner.poll.id", "A JSON pointer to the ID of the job in the first response."),
    (
        "runner.poll.url",
        "The URL of the job's state, or a path on the same server; `{{id}}` stands for the job's \
         ID.",
    ),
    ("runner.poll.every", "The time between two requests for the job's state."),
    (
        "runner.poll.until",
        "The condition under which the job has ended, such as `{ expression = \"$.status\", \
         operator = \"equals\", value = \"done\" }`.",
    ),
    ("runner.poll.failed_when", "The condition under which the job has failed."),
    (
        "runner.poll.output",
        "A JSON pointer to the output in the last response; by default, the pointer in \
         `runner.output`.",
    ),
    (
        "runner.poll.error",
        "A JSON pointer to the error message in the last response, if the job has failed.",
    ),
    (
        "runner.poll.cancel",
        "The request that cancels the job: a method and a URL, such as `DELETE /jobs/{{id}}`.",
    ),
    (
        "runner.output",
        "A JSON pointer to the output in the response; without this key, the entire response is \
         the output.",
    ),
    ("runner.command", "The program and its arguments. No shell reads them."),
    ("runner.mode", "`persistent`: a worker runs job after job. `once`: a process for each job."),
    (
        "runner.directory",
        "The folder in which the program starts; by default, the folder of the manifest.",
    ),
    ("runner.env", "Additional environment variables."),
    (
        "runner.memory_bytes",
        "The memory limit of each process. There is no limit by default, except for `onnx` (2 GiB \
         plus four times the size of the file) and `whisper` (3 GiB plus twice the size).",
    ),
    (
        "runner.writable",
        "The folders that the program may write to, in addition to its own folder.",
    ),
    ("runner.model", "The name of the model on the server."),
    ("runner.kind", "The part of OpenAI's API with which the server is called."),
    ("runner.key", "The API key of the server; `${file:…}` inserts a secret."),
    ("runner.file", "The model file: GGUF for `llm`, ggml for `whisper`, ONNX for `onnx`."),
    ("runner.language", "The language of audio whose request names none, such as `en`."),
    ("runner.beam", "How many alternatives are searched: 1 is fastest, 5 as accurate as usual."),
    ("runner.context", "The number of tokens of all prompts and answers together."),
    ("runner.threads", "The number of threads. With `onnx`, each run uses one."),
    ("runner.inputs", "The inputs that are files, and how a file becomes a tensor."),
    ("runner.outputs", "The outputs that are scores of labels."),
    ("runner.parallel", "How many answers are written at once."),
    ("runner.batch", "How many tokens are computed at once."),
    ("runner.idle_unload", "How long the model stays in memory without requests."),
    ("runner.load", "When the model is loaded: with its first request, or at the start."),
    ("runner.chat_template", "A chat template that replaces the template in the GGUF file."),
    ("runner.lora", "A GGUF file with a LoRA adapter of the model."),
    ("runner.lora_scale", "The factor of the adapter's changes; by default 1."),
    (
        "runner.lease",
        "The lease time: a job goes to another worker if its worker sends no report for this long.",
    ),
    ("runner.graph", "The graph of ComfyUI, a file in the API form beside the manifest."),
    (
        "runner.inputs",
        "The inputs of requests, each with the node's input that it fills in, such as \
         `{ prompt = \"6.inputs.text\" }`.",
    ),
    (
        "runner.organization",
        "The organization whose keys may claim jobs, which contain the inputs of all organizations.",
    ),
    ("runner.version", "The version of the model on the server."),
];

/// Adds the descriptions to the schema of manifests.
pub(super) fn describe(schema: &mut Value) {
    of_fields(schema, "");
}

fn of_fields(schema: &mut Value, prefix: &str) {
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    for (name, field) in properties {
        let path = format!("{prefix}{name}");
        let meaning = MEANINGS.iter().find(|(known, _)| *known == path);
        if let (Some((_, text)), Some(field)) = (meaning, field.as_object_mut()) {
            field.insert("description".to_owned(), (*text).into());
        }
        for variant in field.get_mut("oneOf").and_then(Value::as_array_mut).into_iter().flatten() {
            of_fields(variant, &format!("{path}."));
        }
        if let Some(items) = field.get_mut("items") {
            for variant in
                items.get_mut("anyOf").and_then(Value::as_array_mut).into_iter().flatten()
            {
                of_fields(variant, &format!("{path}[]."));
            }
        }
        of_fields(field, &format!("{path}."));
    }
}
