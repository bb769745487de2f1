//! Tests the errors for each manifest key, with positions and suggestions.

use std::fs;

use super::*;

const GOOD: &str = r#"
slug = "caption"
title = "Image captioner"
output_type = "string"
concurrency = 2
timeout = "5s"
[request_schema]
type = "object"
required = ["image"]
[cost]
type = "fixed"
amount = 0.002
[runner]
type = "http"
url = "http://127.0.0.1:5000/predict"
headers = { X-Plain = "yes" }
body = { image = "{{input.image}}" }
output = "/caption"
"#;

/// Returns the errors of `text`, one per line.
fn errors(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.toml");
    fs::write(&path, text).unwrap();
    let errors = read(&path).unwrap_err();
    let lines: Vec<String> =
        errors.iter().map(|f| format!("{}:{} {}", f.line, f.column, f.message)).collect();
    lines.join("\n")
}

#[test]
fn manifest_parses_every_field() {
    let manifest = parse(GOOD, Path::new(".")).unwrap();
    assert_eq!((manifest.slug.as_str(), manifest.concurrency), ("caption", 2));
    assert_eq!(manifest.timeout, Duration::from_secs(5));
    assert_eq!(manifest.pricing, Some(Pricing::Fixed { amount: Usd::from_micros(2000) }));
    assert_eq!(manifest.runner.type_name, "http");
    assert_eq!(manifest, parse(GOOD, Path::new(".")).unwrap());
    for (from, to) in [("/predict", "/other"), ("yes", "no"), ("5s", "6s")] {
        let other = parse(&GOOD.replace(from, to), Path::new(".")).unwrap();
        assert_ne!(manifest, other, "{to}");
    }
}

#[test]
fn manifest_error_names_its_position_and_nearest_key() {
    let with = |from: &str, to: &str| GOOD.replace(from, to);
    for (text, expect) in [
        (with("title", "tilte"), "3:1 unknown key `tilte`; did you mean `title`?"),
        (with("slug = \"caption\"\n", ""), "1:1 `slug` is missing"),
        (with("slug = \"caption\"", "slug = \"a b\""), "2:8 `slug`: a slug must have 1 to 128"),
        (with("\"5s\"", "\"5 parsecs\""), "6:11 `timeout`: expected a time such as"),
        (with("concurrency = 2", "concurrency = 0"), "5:15 `concurrency`: expected a whole"),
        (with("[cost]", "[retry]\nmax_attempts = 21\n[cost]"), "11:16 `retry.max_attempts`: exp"),
        (
            with("[cost]", "[retry]\nretry_on = ['late']\n[cost]"),
            "11:13 `retry.retry_on`: expected one of \"content_moderation\", ",
        ),
        (with("[cost]", "[retry]\ndelay = 1\n[cost]"), "11:1 unknown key `retry.delay`"),
        (with("[cost]", "[cache]\n[cost]"), "10:1 `cache.ttl` is missing"),
        (with("[cost]", "[cache]\nttl = '0s'\n[cost]"), "11:7 `cache.ttl`: expected a time"),
        (
            with("[cost]", "[cache]\nttl = '1h'\nscope = 'all'\n[cost]"),
            "12:9 `cache.scope`: expected one of \"organization\", \"key\"",
        ),
        (
            with("\"string\"", "\"image\"").replace("[cost]", "[cache]\nttl = '1h'\n[cost]"),
            "10:1 `cache`: outputs that are files are not cached, because files expire",
        ),
        (with("required = [\"image\"]", "\"$ref\" = \"http://a/\""), "leaves the document"),
        (with("output_type = \"string\"", ""), "1:1 `output_type` is missing"),
        (with("\"string\"", "\"text\""), "4:15 `output_type`: expected one of \"string\", "),
        (with("amount = 0.002", ""), "10:1 `cost.amount` is missing"),
        (with("amount = 0.002", "amount = -1"), "12:10 `cost.amount`: expected a number from 0"),
        ("slug = ".to_owned(), "1:8 not TOML: "),
    ] {
        let message = errors(&text);
        assert!(
            message.starts_with(expect) || message.contains(expect),
            "{message}\n not {expect}"
        );
        assert!(!message.contains('\n'), "one error: {message}");
    }
}

#[test]
fn manifest_runner_refuses_invalid_servers() {
    check_runners(&[
        ("type = 'oip'\nurl = 'http://a'", "1:1 `runner.model` is missing"),
        (
            "type = 'oip'\nmodel = 'm'\nurl = 'http://a/v2/models/m'",
            "4:7 `runner.url`: expected the server's URL without /v2/",
        ),
        (
            "type = 'cog'\nurl = 'http://a'\nurls = ['http://b']",
            "4:8 `runner.url` and `runner.urls`: set only one of them",
        ),
        ("type = 'cog'\nurls = []", "3:8 `runner.urls`: is empty: expected a list such as"),
        ("type = 'cog'\nurls = 'http://a'", "3:8 `runner.urls`: expected a list such as ["),
        ("type = 'cog'\nurls = ['a']", "3:9 `runner.urls`: expected an absolute http or"),
        (
            "type = 'cog'\nurls = ['http://a', 'http://a/']",
            "3:21 `runner.urls`: the same URL is listed twice",
        ),
        (
            "type = 'cog'\nurls = [{url = 'http://a', wieght = 2}]",
            "3:28 `runner.urls`: `wieght`: unknown key; did you mean `weight`?",
        ),
        ("type = 'cog'\nurls = [{weight = 2}]", "3:9 `runner.urls`: an entry without `url`"),
        (
            "type = 'cog'\nurls = [{url = 'http://a', weight = 0}]",
            "3:37 `runner.urls`: `weight`: expected a whole number from 1 to 1000, found 0",
        ),
        (
            "type = 'http'\nurl = 'http://a'\nhealth = 'x'",
            "4:10 `runner.health`: expected a path such as \"/healthz\"",
        ),
    ]);
}

#[test]
fn manifest_runner_refuses_invalid_values() {
    check_runners(&[
        ("type = 'lml'\nurl = 1", "2:8 `runner.type`: expected one of \"builtin\", \"http\", "),
        ("url = 1", "1:1 `runner.type` is missing"),
        ("type = 'builtin'", "1:1 `runner.name` is missing"),
        ("type = 'builtin'\nname = 'x'", "3:8 `runner.name`: expected one of \"html-to-text\""),
        ("type = 'http'\nurl = '/x'", "3:7 `runner.url`: expected an absolute http or https"),
        ("type = 'http'\nurl = 'http://a:0'", "3:7 `runner.url`: must not have the port 0"),
        ("type = 'cog'\nurl = 'http://u%3Ax@a'", "`runner.url`: must not have ':' in its user"),
        (
            "type = 'cog'\nurl = 'http://a/{{input.b}}'",
            "`runner.url`: contains a reference, but references are not resolved here",
        ),
        (
            "type = 'http'\nurl = '{{input.b}}'",
            "`runner.url`: contains a reference, but references are not",
        ),
        ("type = 'http'\nurl = 'http://{{input.b}}/'", "must not have {{input.b}} in its scheme"),
        ("type = 'http'\nurl = 'http://a/{{inputs.b}}'", "is not a reference to the input"),
        (
            "type = 'http'\nurl = 'http://a'\nheaders = { X = '{{input.b}}' }",
            "`runner.headers`: references are resolved in `url` and `body` only",
        ),
        ("type = 'http'\nurl = 'http://a'\noutput = 'x'", "4:10 `runner.output`: expected a JSON"),
        (
            "type = 'http'\nurl = 'http://a'\nmethod = 'a b'",
            "4:10 `runner.method`: \"a b\" is not an HTTP method",
        ),
        (
            "type = 'http'\nurl = 'http://a'\nheaders = { X = '${env:ORRERY_TEST_UNSET}' }",
            "`runner.headers`: environment variable ORRERY_TEST_UNSET is not set",
        ),
        (
            "type = 'http'\nurl = 'http://a'\nheaders = { Accept = 'x', accept = 'y' }",
            "are the same header: keep one",
        ),
        (
            "type = 'http'\nurl = 'http://a'\nheaders = { \"a b\" = 'x' }",
            "`runner.headers`: \"a b\" is not a valid header name",
        ),
        ("type = 'http'\nurl = 'http://a'\nbody = '{{x}}'", "4:8 `runner.body`: {{x}} "),
        ("type = 'http'\nurl = 'http://a'\nbody = 2020-01-01", "a date in quotes, found 2020"),
        ("type = 'openai'\nmodel = 'm'\nurl = 'http://a'", "1:1 `runner.kind` is missing"),
        (
            "type = 'openai'\nmodel = 'm'\nurl = 'http://a'\nkind = 'talk'",
            "5:8 `runner.kind`: expected one of \"chat\", \"embeddings\", \"images\", \"completions\", \"rerank\", \"transcriptions\", \"speech\", found",
        ),
        ("type = 'openai'\nkind = 'chat'\nurl = 'http://a'", "1:1 `runner.model` is missing"),
        ("type = 'cog'", "1:1 `runner.url` is missing"),
        ("type = 'command'", "1:1 `runner.command` is missing"),
        ("type = 'command'\ncommand = []", "3:11 `runner.command`: expected a list: the program"),
        (
            "type = 'command'\ncommand = ['x']\nmode = 'twice'",
            "4:8 `runner.mode`: expected one of \"persistent\", \"once\", found \"twice\"",
        ),
        (
            "type = 'command'\ncommand = ['x']\nmemory_bytes = '1KiB'",
            "4:16 `runner.memory_bytes`: expected bytes from 67108864 to",
        ),
        ("type = 'command'\ncommand = ['x']\ndirectory = 'absent'", "4:13 `runner.directory`: "),
        (
            "type = 'command'\ncommand = ['x']\nenv = { A = 'x', 'B=' = 'x' }",
            "`runner.env`: \"B=\" cannot be the name of an environment variable",
        ),
    ]);
}

/// Checks that each `[runner]` has exactly one error, which contains the given text.
fn check_runners(runners: &[(&str, &str)]) {
    for (runner, expect) in runners {
        let message = errors(&format!("[runner]\n{runner}\n[x]\n"));
        let lines: Vec<&str> = message.lines().collect();
        let about = lines.iter().filter(|line| line.contains("`runner"));
        assert_eq!(about.count(), 1, "{message}");
        assert!(message.contains(expect), "{message}\n  instead of {expect}");
    }
}

/// A limit that a manifest sets on the wrong type of runner must not be ignored silently.
#[test]
fn manifest_runner_refuses_keys_of_other_types() {
    let keys = [
        "name = 'x'",
        "url = 'http://a'",
        "urls = ['http://a']",
        "health = '/x'",
        "version = '1'",
        "model = 'm'",
        "kind = 'chat'",
        "key = 'k'",
        "method = 'POST'",
        "headers = {}",
        "body = {}",
        "output = '/x'",
        "command = ['x']",
        "mode = 'once'",
        "directory = '.'",
        "env = {}",
        "memory_bytes = '1GiB'",
        "writable = []",
        "start = ['x']",
        "working_dir = '.'",
        "environment = {}",
        "start_timeout = '1m'",
        "stop_timeout = '1m'",
        "load = 'at_start'",
        "idle_unload = '1m'",
        "group = 'x'",
        "memory = '1GiB'",
        "multipart = {}",
        "files = []",
        "poll = {}",
        "lease = '1m'",
        "organization = 'x'",
        "graph = 'x.json'",
        "beam = 1",
        "language = 'en'",
        "file = 'x'",
        "threads = 1",
        "inputs = {}",
        "outputs = {}",
    ];
    const START: &str = "health start working_dir environment start_timeout stop_timeout load \
                         idle_unload group memory";
    for (kind, own) in [
        ("builtin", "name"),
        ("http", "url urls health method headers body multipart files poll output"),
        ("openai", "url urls model kind key"),
        ("cog", "url urls"),
        ("oip", "url urls model version"),
        ("command", "command mode directory env memory_bytes writable"),
        ("pull", "lease organization"),
        ("comfyui", "url urls graph inputs"),
        ("whisper", "file language beam threads idle_unload load memory_bytes"),
        ("onnx", "file threads idle_unload load memory_bytes inputs outputs"),
    ] {
        let mut own: Vec<&str> = own.split(' ').collect();
        if own.contains(&"url") {
            own.extend(START.split_whitespace());
        }
        for key in keys {
            let name = key.split(' ').next().unwrap();
            let message = errors(&format!("x = 1\n[runner]\ntype = '{kind}'\n{key}\n"));
            let refused = message.contains(&format!("4:1 unknown key `runner.{name}`; "));
            assert_eq!(refused, !own.contains(&name), "{kind} {key}: {message}");
            assert!(!message.contains(&format!("did you mean `{name}`")), "{message}");
        }
    }
}

#[test]
fn manifest_cost_refuses_keys_of_other_types() {
    for (kind, own) in [
        ("fixed", "amount report"),
        (
            "usage_based",
            "estimate per_second per_million_input_tokens \
             per_million_cached_input_tokens per_million_reasoning_tokens per_audio_minute per_million_characters \
             per_image report",
        ),
    ] {
        let own: Vec<&str> = own.split(' ').collect();
        for key in [
            "amount = 1",
            "estimate = 'x'",
            "per_second = 1",
            "per_million_input_tokens = 1",
            "per_million_cached_input_tokens = 1",
            "per_million_reasoning_tokens = 1",
            "per_audio_minute = 1",
            "per_million_characters = 1",
            "per_image = 1",
            "report = '/x'",
        ] {
            let name = key.split(' ').next().unwrap();
            let message = errors(&format!("x = 1\n[cost]\ntype = '{kind}'\n{key}\n"));
            let refused = message.contains(&format!("4:1 unknown key `cost.{name}`; "));
            assert_eq!(refused, !own.contains(&name), "{kind} {key}: {message}");
        }
    }
}

#[test]
fn manifest_error_names_the_right_table_of_a_misplaced_key() {
    let message = errors("[runner]\ntype = 'http'\nslug = 'a'\nmemory_byte = 1\n");
    let misspelled = "4:1 unknown key `runner.memory_byte`; the keys here are";
    assert!(message.contains(misspelled), "{message}");
    for key in ["concurrency = 2", "timeout = '5s'", "output_type = 'string'"] {
        let message =
            errors(&format!("slug = 'a'\n[runner]\ntype = 'cog'\nurl = 'http://h'\n{key}\n"));
        assert!(message.contains("belongs at the top of the file, above `[runner]`"), "{message}");
    }
    let message = errors("slug = 'a'\n[runner]\ntype = 'http'\nretry.max_attempts = 3\n");
    assert!(message.contains("`retry` is a table of its own: write `[retry]`"), "{message}");
}

/// JSON Schema ignores unknown keywords, so the manifest parser must reject them.
#[test]
fn manifest_schema_refuses_misplaced_and_misspelled_keys() {
    let with = |key: &str| GOOD.replace("required = [\"image\"]", key);
    let top = |key: &str| {
        format!(
            "9:1 unknown key `request_schema.{key}`; `{key}` belongs at the top of the file, \
             above `[request_schema]`"
        )
    };
    for (key, expect) in [
        ("queue_limit = 2", top("queue_limit")),
        ("slug = 'a'", top("slug")),
        ("retry.max_attempts = 3", "`retry` is a table of its own: write `[retry]`".to_owned()),
        (
            "requried = ['image']",
            "9:1 unknown key `request_schema.requried`; did you mean `required`?".to_owned(),
        ),
        ("typ = 'object'", "`request_schema.typ`; did you mean `type`?".to_owned()),
        (
            "properties.image = { type = 'string', minLenght = 1 }",
            "9:39 unknown key `request_schema.properties.image.minLenght`; did you mean \
             `minLength`?"
                .to_owned(),
        ),
        (
            "[request_schema.properties.image]\ntimeout = '5s'",
            "10:1 unknown key `request_schema.properties.image.timeout`; `timeout` belongs at \
             the top of the file, above `[request_schema.properties.image]`"
                .to_owned(),
        ),
        (
            "anyOf = [{ required = ['image'] }, { propertes = {} }]",
            "`request_schema.anyOf.1.propertes`; did you mean `properties`?".to_owned(),
        ),
    ] {
        let message = errors(&with(key));
        assert!(message.contains(&expect), "{message}\n instead of {expect}");
    }
    for good in [
        "properties = { concurrency = { type = 'integer' }, typ = {}, slug = { title = 'x' } }",
        "title = 'x'\ndescription = 'y'\nexample = { image = 'z' }",
        "x-order = 1\ngroup = 'a'\n'ui:widget' = 'b'\nenumNames = ['c']",
        "default = { timeout = 1 }\nconst = { requried = 2 }",
    ] {
        let parsed = parse(&with(good), Path::new("."));
        assert!(parsed.is_ok(), "{good}: {parsed:?}");
    }
}

#[test]
fn manifest_schema_file_stays_in_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("s.json"), r#"{"required":["a"]}"#).unwrap();
    let manifest = |file: &str| {
        format!(
            "slug='a'\noutput_type='string'\nrequest_schema_file='{file}'\n\
             [runner]\ntype='builtin'\nname='text-template'\n"
        )
    };
    let read = parse(&manifest("s.json"), folder.path()).unwrap();
    assert!(read.schema.unwrap().check(serde_json::json!({})).is_err());
    fs::write(folder.path().join("t.json"), r#"{"properties":{"a":{"tpye":1}}}"#).unwrap();
    let errors = parse(&manifest("t.json"), folder.path()).unwrap_err();
    let misspelled = "/properties/a/tpye: unknown keyword; did you mean `type`?";
    assert!(errors[0].message.contains(misspelled), "{errors:?}");
    for outside in ["../s.json", "/etc/passwd", "missing.json"] {
        assert!(parse(&manifest(outside), folder.path()).is_err(), "{outside}");
    }
}

#[test]
fn schema_accepts_what_the_parser_accepts_for_each_runner() {
    let schema = published_schema();
    let runners = schema["properties"]["runner"]["oneOf"].as_array().unwrap();
    assert_eq!(runners.len(), options::type_names().count());
    let validator = jsonschema::validator_for(&schema).unwrap();
    let json = |text: &str| serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap();
    let head = "slug = 'm'\noutput_type = 'string'\n";
    let cost = "[cost]\ntype = 'usage_based'\nper_second = 0.1\n";
    for (text, is_good) in [
        (GOOD.to_owned(), true),
        (format!("{head}{cost}[runner]\ntype = 'builtin'\nname = 'text-template'"), true),
        (
            format!(
                "{head}[runner]\ntype = 'openai'\nkind = 'chat'\nmodel = 'x'\n\
                 urls = ['http://a/v1', {{ url = 'http://b/v1', weight = 2 }}]"
            ),
            true,
        ),
        (format!("{head}[runner]\ntype = 'cog'\nurl = 'http://127.0.0.1:5000'"), true),
        (format!("{head}[runner]\ntype = 'http'\nstart = ['x']"), true),
        (format!("{head}[runner]\ntype = 'http'\nstart = ['x']\nurl = 'http://a'"), true),
        (format!("{head}[runner]\ntype = 'http'\nurl = 'http://a'\nbdoy = 1"), false),
        (format!("{head}[runner]\ntype = 'htpt'\nurl = 'http://a'"), false),
        (format!("{head}concurrency = 0\n[runner]\ntype = 'cog'\nurl = 'http://a'"), false),
        (format!("{head}retry.max_attempts = 21\n[runner]\ntype = 'cog'\nurl = 'http://a'"), false),
        (
            format!(
                "{head}cost = {{ type = 'fixed', per_second = 1 }}\n[runner]\ntype = 'cog'\nurl = 'http://a'"
            ),
            false,
        ),
        ("slug = 'm'\noutput_type = 'string'".to_owned(), false),
        ("output_type = 'string'\n[runner]\ntype = 'cog'\nurl = 'http://a'".to_owned(), false),
    ] {
        assert_eq!(parse(&text, Path::new("/")).is_ok(), is_good, "{text}");
        assert_eq!(validator.is_valid(&json(&text)), is_good, "{text}");
    }
}

#[test]
fn manifest_cache_version_depends_on_keys_and_values_only() {
    let with = |cache: &str| GOOD.replace("[cost]", &format!("[cache]\nttl = '1h'\n{cache}[cost]"));
    let cache = |text: &str| parse(text, Path::new(".")).unwrap().cache.unwrap();
    let first = cache(&with(""));
    assert_eq!((first.ttl, first.scope), (Duration::from_secs(3600), CacheScope::Organization));
    assert_ne!(first.version, [0; 32]);
    assert_eq!(cache(&with("# a comment\n")), first);
    let reordered = format!("{GOOD}[cache]\nttl = '1h'\n");
    assert_eq!(cache(&reordered), first);
    let own = cache(&with("scope = 'key'\n"));
    assert_eq!(own.scope, CacheScope::Key);
    assert_ne!(own.version, first.version);
    assert_ne!(cache(&with("").replace("/predict", "/other")).version, first.version);
    assert_eq!(parse(GOOD, Path::new(".")).unwrap().cache, None);
}
