//! Tests that the example file is accurate, and that each kind of error is reported with its
//! position.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;

use super::sections::{Defaults, read};
use super::*;
use orrery_domain::model::Rates;

const EXAMPLE: &str = include_str!("../../../config.example.toml");

fn defaults() -> Defaults {
    let mut defaults = Defaults::with_a_file();
    "box.lan".clone_into(&mut defaults.machine);
    defaults
}

fn good(text: &str) -> Config {
    let (config, errors, _) = read(text, Path::new("/etc/orrery"), &defaults());
    assert_eq!(errors, [], "{text}");
    config
}

/// Returns the errors of `text`, one per line, as `LINE:COLUMN message`.
fn errors(text: &str) -> String {
    let (_, errors, _) = read(text, Path::new("/etc/orrery"), &defaults());
    let lines: Vec<String> =
        errors.iter().map(|f| format!("{}:{} {}", f.line, f.column, f.message)).collect();
    lines.join("\n")
}

/// Returns the paths of all keys in a TOML text, as the reader spells them.
fn paths(text: &str) -> BTreeSet<String> {
    fn collect(prefix: &str, table: &toml::Table, into: &mut BTreeSet<String>) {
        for (key, value) in table {
            let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            match value.as_table() {
                Some(inner) if !inner.is_empty() => collect(&path, inner, into),
                // An empty table is a value, such as `aliases = {}`.
                _ => {
                    into.insert(path);
                }
            }
        }
    }
    let mut found = BTreeSet::new();
    collect("", &text.parse().unwrap(), &mut found);
    found
}

/// Returns the example file with every disabled option enabled.
fn example_with_options() -> String {
    let switched_on = |line: &str| match line.strip_prefix('#') {
        Some(key) if key.starts_with(|first: char| first.is_ascii_lowercase()) => key.to_owned(),
        _ => line.to_owned(),
    };
    EXAMPLE.lines().map(|line| switched_on(line) + "\n").collect()
}

#[test]
fn config_example_matches_defaults() {
    assert_eq!(good(EXAMPLE), good(""));
}

#[test]
fn config_example_lists_exactly_the_known_keys() {
    let (_, _, known) = read("", Path::new(""), &defaults());
    let names = |has_default: bool| -> BTreeSet<String> {
        known.iter().filter(|k| k.has_default == has_default).map(|k| k.path.clone()).collect()
    };
    let shown = paths(EXAMPLE);
    assert_eq!(shown, names(true), "keys with a default are set in the example");
    let switched_on = paths(&example_with_options());
    let options: BTreeSet<String> = switched_on.difference(&shown).cloned().collect();
    assert_eq!(options, names(false), "keys without a default are shown behind a #");
}

#[test]
fn config_example_options_parse() {
    let text = example_with_options()
        .replace("mode = \"auto\"", "mode = \"files\"")
        .replace("passphrase_file = ", "#")
        .replace("directory_ca = ", "#")
        .replace("domains = ", "#")
        .replace("cache = ", "#")
        .replace("${file:/etc/orrery/upstream-key}", "sk-upstream");
    let config = good(&text);
    assert_eq!(config.limits.rate.unwrap().burst.get(), 200);
    assert_eq!(config.backup.every, Some(Duration::from_secs(86_400)));
    assert_eq!(config.backup.recipients.len(), 1);
    assert_eq!(config.backup.log, Some(Duration::from_secs(60)));
    assert_eq!(config.limits.tokens_per_day, Some(1_000_000));
    assert_eq!(config.router.upstreams[0].url, "https://models.example/v1");
    assert_eq!(config.telemetry.otlp_endpoint.as_deref(), Some("http://127.0.0.1:4318"));
    assert!(matches!(config.tls.mode, TlsMode::Files { .. }));
    assert_eq!(config.hosts.agent.public_url, "https://box.lan:8446");
}

#[test]
fn config_defaults_are_local_only() {
    let config = Config::defaults();
    let here = std::env::current_dir().unwrap();
    assert_eq!(config.data_dir, here.join("orrery-data"));
    assert_eq!(config.models_dir, here.join("orrery-data/models.d"));
    let urls: Vec<_> = config.hosts.named().iter().map(|(_, h)| h.public_url.clone()).collect();
    assert_eq!(urls[0], "http://127.0.0.1:8080");
    assert_eq!(urls[4], "http://127.0.0.1:8084");
    assert!(
        config
            .egress
            .allow
            .iter()
            .any(|n| n.contains(&"127.0.0.1".parse::<std::net::IpAddr>().unwrap()))
    );
}

#[test]
fn config_reports_all_errors_at_once_with_positions() {
    let text = "data_dri = \"/x\"\n\n[limits]\nbody_bytes = \"eight\"\nbody_timout = \"1s\"\n\
                [egress]\nallow = [\"10.0.0.0/8\", \"10.0.0.0/40\",\n  \"lan\"]\n[billings]\n";
    insta::assert_snapshot!(errors(text), @r#"
    1:1 unknown key `data_dri`; did you mean `data_dir`?
    4:14 `limits.body_bytes`: expected bytes from 1024 to 1073741824, as a number or such as "8MiB", found "eight"
    5:1 unknown key `limits.body_timout`; did you mean `body_timeout`?
    7:24 `egress.allow`: expected a network such as "10.0.0.0/8" or one address, found "10.0.0.0/40"
    8:3 `egress.allow`: expected a network such as "10.0.0.0/8" or one address, found "lan"
    9:2 unknown key `billings`; did you mean `billing`?
    "#);
}

#[test]
fn config_key_in_wrong_table_gets_hint() {
    for (text, expect) in [
        ("[log]\ndata_dir = 'x'", "`data_dir` belongs at the top of the file, above `[log]`"),
        ("[hosts.base]\nmodels_dir = 'x'", "at the top of the file, above `[hosts.base]`"),
        ("[limits]\nretention.executions = '1d'", "is a table of its own: write `[retention]`"),
        ("[backup]\nlevel = 'info'", "did you mean `log.level`?"),
        ("upstream_url = 'http://x/v1'", "did you mean `router.upstream_url`?"),
        ("[router]\napi_key = 'x'", "the keys here are upstream_url"),
        ("port = 8080", "`hosts.base.listen = \"127.0.0.1:8080\"`"),
        ("model = 'llama'", "did you mean `agent.model`?"),
        ("[hosts.api]\nlisten = '127.0.0.1:1'", "the keys here are one_port, base, workflows"),
    ] {
        let message = errors(text);
        assert!(message.contains(expect), "{text}: {message}");
    }
}

#[test]
fn config_syntax_error_names_its_line() {
    let message = errors("[limits]\nconnections = = 3\n");
    assert!(message.starts_with("2:"), "{message}");
    assert!(message.contains("not TOML"), "{message}");
    let message = errors("[limits]\nconnections = 3\nconnections = 4\n");
    assert!(message.starts_with("3:") && message.contains("duplicate key"), "{message}");
}

#[test]
fn config_invalid_ollama_host_is_refused() {
    for (text, expected) in [
        ("hosts.ollama.listen = []", "expected at least one address"),
        ("hosts.ollama = {listen = '127.0.0.1:1', key_id = 'smk_x'}", "the id of an API key"),
        (
            "hosts.ollama.key_id = '0192f0c1-7a1b-7c3d-8e4f-5a6b7c8d9e0f'",
            "has no effect without `listen`",
        ),
    ] {
        check_error(text, expected);
    }
}

#[test]
fn config_invalid_identity_provider_names_expected_form() {
    for (text, expected) in [
        (
            "dashboard.oidc = { issuer = \"http://id.lan\", client_id = \"c\", client_secret = \"s\" }",
            "an https address such as",
        ),
        (
            "dashboard.oidc = { issuer = \"https://id.lan\", client_id = \"c\", client_secret = \"s\" }",
            "`dashboard.oidc` needs `map`: without a group",
        ),
        ("dashboard.oidc.issuer = \"https://id.lan\"", "`dashboard.oidc` needs `client_id`, too"),
        ("dashboard.oidc.scopes = [\"email\"]", "must contain \"openid\""),
        ("dashboard.oidc.map.g = 1", "a table such as { organization"),
        ("dashboard.oidc.map.g = { organization = \"o\" }", "`role` is missing"),
        (
            "dashboard.oidc.map.g = { organization = \"o\", role = \"owner\" }",
            "one of \"editor\", \"operator\", \"viewer\", found \"owner\"",
        ),
    ] {
        check_error(text, expected);
    }
}

#[test]
fn config_invalid_value_names_expected_form() {
    for (text, expected) in [
        ("data_dir = 3", "expected a string that is not empty, found 3"),
        ("tls = 1", "expected a table, found integer"),
        ("tls.mode = \"on\"", "expected \"auto\", \"self-signed\", \"files\", \"acme\" or \"off\""),
        ("tls.mode = \"files\"", "needs `certificate` and `private_key`"),
        ("tls.certificate = \"a.pem\"", "is read in `mode = \"files\"` only"),
        ("tls.names = [\"a b\"]", "expected a host name"),
        ("limits.connections = 0", "a whole number from 1 to 1000000, found 0"),
        ("limits.connections = 99999999999999999999", "a whole number from 1"),
        ("limits.sync_wait = 10", "expected a time such as"),
        ("limits.sync_wait = \"2h\"", "from 1s to 1h"),
        ("limits.body_bytes = -1", "expected bytes from"),
        ("limits.body_bytes = \"99999999999TiB\"", "expected bytes from"),
        ("limits.rate.burst = 3", "has no effect without `requests_per_second`"),
        ("engine.payload_inline_bytes = \"65KiB\"", "from 1024 to 65536"),
        ("webhooks.schedule = \"5s\"", "expected a list"),
        ("hosts.base.listen = \"localhost:80\"", "an address such as \"0.0.0.0:8443\""),
        ("hosts.base.listen = []", "expected at least one address"),
        ("hosts.base.public_url = \"ftp://box\"", "an address such as \"https://box.lan:8443\""),
        ("hosts.base.public_url = \"https://u:p@box\"", "an address such as"),
        ("cors.allow_origins = [\"https://a.example/\"]", "an origin such as"),
        ("log.level = \"inof\"", "off, error, warn, info, debug or trace"),
        ("log.level = \"info,h2=trace\"", "off, error, warn, info, debug or trace"),
        ("log.format = \"xml\"", "one of \"auto\", \"text\", \"json\", found \"xml\""),
        ("log.access = 1", "expected true or false, found 1"),
        ("telemetry.otlp_endpoint = \"box:4318\"", "an address such as"),
        ("telemetry.otlp_endpoint = \"http://u:p@box\"", "an address such as"),
        ("telemetry.otlp_headers = { a = \"b\" }", "has no effect without `otlp_endpoint`"),
        (
            "telemetry = { otlp_endpoint = \"http://c\", otlp_headers = { \"a b\" = \"c\" } }",
            "\"a b\" is not a valid header name",
        ),
        (
            "telemetry = { otlp_endpoint = \"http://c\", otlp_headers = { a = \"b\\n\" } }",
            "visible ASCII characters only",
        ),
        ("router.upstream_url = \"ftp://models\"", "an address such as"),
        (
            "router.upstream_url = \"https://m/v1/chat/completions\"",
            "expected the URL of the whole API, such as \"https://m/v1\"",
        ),
        ("router.upstream_url = 'http://m/v1/embeddings/'", "such as \"http://m/v1\""),
        ("router.upstream_key = \"k\"", "has no effect without `upstream_url`"),
        (
            "router = { upstream_url = \"http://m/v1\", upstream_key = \"a b\" }",
            "visible ASCII characters only",
        ),
        ("router.platform_fee = -0.1", "expected a number from 0 to 10, found -0.1"),
        ("router.platform_fee = nan", "expected a number from 0 to 10, found nan"),
        ("router.prices = {}", "expected a list, found a table"),
        ("router.prices = [1]", "expected a table such as { model ="),
        ("router.prices = [{ model = \"m\" }]", "`per_million_input_tokens` is missing"),
        ("router.prices = [{ price = 1 }]", "unknown key `price`; the keys here are model"),
        (
            "router.prices = [\n\
             {model=\"m\", per_million_input_tokens=1, per_million_output_tokens=2},\n\
             {model=\"m\", per_million_input_tokens=1, per_million_output_tokens=2}]",
            "`router.prices`: \"m\" is listed twice",
        ),
        ("router.idle_timeout = \"0s\"", "from 1ms to 1h"),
        ("limits.tokens_per_day = 0", "a whole number from 1 to 1000000000000, found 0"),
        ("decisions.samples = 0", "a whole number from 1 to 64, found 0"),
        ("decisions.aliases = { a = 1 }", "`decisions.aliases`"),
        ("agent.max_steps = 0", "a whole number from 1 to 1000, found 0"),
        ("agent.context_tokens = 100", "a whole number from 1024 to 100000000, found 100"),
        ("agent.max_cost = -1", "expected a number from 0 to 1000000, found -1"),
        ("retention.sessions = \"1s\"", "`retention.sessions`"),
    ] {
        check_error(text, expected);
    }
}

#[test]
fn config_of_alerts_names_expected_form() {
    for (text, expected) in [
        ("alerts.url = \"ntfy.sh/topic\"", "expected an http or https URL such as"),
        ("alerts.url = \"ftp://a/b\"", "expected an http or https URL such as"),
        (
            "alerts = { url = \"http://a\", secret = \"x\" }",
            "expected \"whsec_\" and the base64 of",
        ),
        (
            "alerts.secret = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"",
            "`alerts.secret` has no effect without `url`",
        ),
        (
            "alerts = { url = \"http://a\", format = \"ntfy\", \
             secret = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\" }",
            "`alerts.secret` has no effect with `format = \"ntfy\"`",
        ),
        ("alerts.format = \"mail\"", "one of \"webhook\", \"ntfy\", found \"mail\""),
        ("alerts.every = \"2d\"", "from 1s to 1d"),
    ] {
        check_error(text, expected);
    }
}

#[test]
fn config_header_in_two_spellings_is_rejected() {
    for text in [
        "telemetry = { otlp_endpoint = \"http://c\", otlp_headers = { Key = \"c\", key = \"d\" } }",
        "agent.mcp_servers = [{ name = \"a\", url = \"http://h\", headers = { A = \"b\", a = \"c\" } }]",
    ] {
        check_error(text, "are the same header: keep one");
    }
}

/// Checks that `text` has the expected error, on one line.
fn check_error(text: &str, expected: &str) {
    let message = errors(text);
    assert!(message.contains(expected), "{text}: {message}");
    assert!(!message.contains('\n'), "one error: {message}");
}

#[test]
fn config_of_mcp_server_names_expected_form() {
    for (text, expected) in [
        ("agent.mcp_servers = [1]", "expected a table such as { name ="),
        ("agent.mcp_servers = [{ url = \"http://h\" }]", "`name` is missing"),
        ("agent.mcp_servers = [{ name = \"a b\", url = \"http://h\" }]", "characters of a-z 0-9 -"),
        ("agent.mcp_servers = [{ name = \"a\" }]", "either `url` or `command`"),
        (
            "agent.mcp_servers = [{ name = \"a\", url = \"http://h\", command = [\"x\"] }]",
            "either `url` or `command`",
        ),
        (
            "agent.mcp_servers = [{ name = \"a\", command = [\"x\"], headers = { A = \"b\" } }]",
            "`headers` has no effect without `url`",
        ),
        (
            "agent.mcp_servers = [{ name = \"a\", url = \"http://h\", headers = { \"A B\" = \"b\" } }]",
            "cannot be the name of a header",
        ),
        ("agent.mcp_servers = [{ name = \"a\", uri = \"http://h\" }]", "unknown key `uri`"),
        ("agent.mcp_servers = [{ name = \"a\", url = \"ftp://h\" }]", "http or https URL"),
        (
            "agent.mcp_servers = [{name=\"a\",url=\"http://h\"},{name=\"a\",url=\"http://i\"}]",
            "`agent.mcp_servers`: \"a\" is listed twice",
        ),
    ] {
        check_error(text, expected);
    }
}

/// SDKs wait ten minutes for a response, and retry the request if a proxy gives up earlier.
#[test]
fn config_router_waits_as_long_as_clients_by_default() {
    let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
    for text in
        ["", "[router]\nupstream_url = \"http://m/v1\"", "[router]\nconnect_timeout = \"1s\""]
    {
        let router = good(text).router;
        assert_eq!((router.first_byte_timeout, router.idle_timeout), (minutes(10), minutes(10)));
    }
    let router = good("[router]\nidle_timeout = \"1m\"").router;
    assert_eq!((router.first_byte_timeout, router.idle_timeout), (minutes(10), minutes(1)));
}

#[test]
fn config_router_aliases_are_ids_with_at_most_one_star() {
    let aliases = good("[router.aliases]\n\"claude-*\" = \"qwen\"\n'*' = 'a/b'").router.aliases;
    let pair = |alias: &str, model: &str| (alias.to_owned(), model.to_owned());
    assert_eq!(aliases, [pair("claude-*", "qwen"), pair("*", "a/b")]);
    for (aliases, message) in [
        ("'a*b*' = 'm'", "a model's ID with at most one `*`"),
        ("'' = 'm'", "a model's ID with at most one `*`"),
        ("a = 'm*'", "must stand for the ID of one model"),
        ("a = 1", "`router.aliases`"),
    ] {
        check_error(&format!("router.aliases = {{ {aliases} }}"), message);
    }
}

#[test]
fn config_router_prices_are_read_per_model() {
    let text = "[router]\nplatform_fee = 0.05\n[[router.prices]]\nmodel = \"a/b\"\n\
                per_million_input_tokens = 2.5\nper_million_output_tokens = 10\n";
    let router = good(text).router;
    let price = ModelPrice {
        model: "a/b".to_owned(),
        rates: Rates {
            per_million_input_tokens: Some(2.5),
            per_million_output_tokens: Some(10.0),
            ..Rates::default()
        },
    };
    assert_eq!((router.platform_fee, router.prices), (0.05, vec![price]));
    let of = |rates: &str| format!("router.prices = [{{ model = 'm'{rates} }}]");
    let media = good(&of(", per_audio_minute = 1, per_million_characters = 2, per_image = 3"));
    let media = &media.router.prices[0].rates;
    let rates = [media.per_audio_minute, media.per_million_characters, media.per_image];
    assert_eq!(rates, [Some(1.0), Some(2.0), Some(3.0)]);
    for (rates, message) in [
        ("", "`per_million_input_tokens` is missing"),
        (", per_million_input_tokens = 1", "`per_million_output_tokens` is missing"),
        (", per_hour = 1", "the keys here are model, per_million_input_tokens"),
        (", per_image = -1", "`router.prices`"),
    ] {
        check_error(&of(rates), message);
    }
}

#[test]
fn config_upstreams_are_read_with_their_defaults() {
    let text = "[router]\nidle_timeout = '1m'\nupstream_url = 'http://last/v1'\n\
                [[router.upstreams]]\nname = 'a'\nurl = 'https://a/v1/'\n\
                [[router.upstreams]]\nname = 'b'\nkind = 'azure'\nurl = 'https://b'\n\
                api_version = '2024-10-21'\nkeys = ['k1', 'k2']\nmodels = ['gpt-4o']\n\
                prefix = 'az/'\nweight = 3\npriority = 2\ntimeout = '2m'\nidle_timeout = '5s'\n\
                first_byte_timeout = '3s'\nstream_options = 'never'\nheaders = { X-A = 'b' }\n\
                prices = [{ model = 'gpt-4o', per_image = 1 }]\n";
    let [a, b, last] = &good(text).router.upstreams[..] else { panic!() };
    let minute = Duration::from_secs(60);
    assert_eq!((a.name.as_str(), a.url.as_str(), a.priority), ("a", "https://a/v1", 0));
    assert_eq!((a.idle_timeout, a.first_byte_timeout, a.weight), (minute, 10 * minute, 1));
    assert_eq!((&a.models[..], a.stream_options), (&["*".to_owned()][..], StreamOptions::Auto));
    assert_eq!(b.kind, UpstreamKind::Azure { api_version: "2024-10-21".to_owned() });
    let times = (b.timeout, b.idle_timeout, b.first_byte_timeout);
    assert_eq!(times, (2 * minute, minute / 12, minute / 20));
    assert_eq!((b.keys.len(), b.weight, b.priority, b.prices.len()), (2, 3, 2, 1));
    assert_eq!((b.prefix.as_str(), b.headers[0].0.as_str()), ("az/", "x-a"));
    assert_eq!((last.name.as_str(), last.idle_timeout), ("", minute));
    assert!(last.priority > b.priority);
    assert!(!format!("{a:?} {b:?}").contains("k1"), "keys are not printed");
}

#[test]
fn config_upstreams_that_are_faulty_name_the_fault() {
    let of =
        |keys: &str| format!("router.upstreams = [{{ name = 'a', url = 'https://a/v1'{keys} }}]");
    for (keys, message) in [
        (", kind = 'other'", "\"openai\""),
        (", url2 = 'x'", "unknown key `url2`; the keys here are name, kind, url"),
        (", key = 'a', keys = ['b']", "set only one of `key` and `keys`"),
        (", keys = []", "`keys` must have 1 to 64 keys"),
        (", keys = ['secret1', 'secret1']", "`keys` has the same key twice"),
        (", key = 'a b'", "visible ASCII characters only"),
        (", models = []", "`models` must have 1 to 1000 patterns"),
        (", models = ['a*b*']", "at most one `*`"),
        (", prefix = 'a*'", "without `*`"),
        (", weight = 0", "a whole number from 1 to 1000, found 0"),
        (", priority = -1", "a whole number from 0 to 1000"),
        (", timeout = '0s'", "from 1ms to 1d"),
        (", stream_options = 'maybe'", "\"auto\""),
        (", api_version = '2024'", "`api_version` applies only to the kind \"azure\""),
        (", kind = 'azure'", "`api_version` is missing"),
        (", kind = 'azure', api_version = 'a&b'", "is not a version such as"),
        (", kind = 'azure', api_version = '2024'", "`models` must name its deployments"),
        (", kind = 'anthropic', responses = 'native'", "needs the kind \"openai\""),
        (", prices = [{ model = 'm' }]", "`per_million_input_tokens` is missing"),
        (", prices = [{ model = 'm', per_image = 1 }, { model = 'm', per_image = 2 }]", "twice"),
    ] {
        check_error(&of(keys), message);
    }
    for (text, message) in [
        ("router.upstreams = 1", "expected a list"),
        ("router.upstreams = [1]", "expected a table such as { name = \"openai\""),
        ("router.upstreams = [{ url = 'http://a/v1' }]", "`name` is missing"),
        ("router.upstreams = [{ name = 'a' }]", "`url` is missing"),
        ("router.upstreams = [{ name = 'A b', url = 'http://a/v1' }]", "lowercase letters"),
        ("router.upstreams = [{ name = 'a', url = 'ftp://a' }]", "an address such as"),
        (
            "router.upstreams = [{ name = 'a', url = 'http://a/v1/chat/completions' }]",
            "expected the URL of the whole API, such as \"http://a/v1\"",
        ),
        (
            "router.upstreams = [{ name = 'a', kind = 'anthropic', url = 'http://a/v1/messages' }]",
            "expected the URL of the whole API, such as \"http://a/v1\"",
        ),
        (
            "router.upstreams = [{ name = 'a', kind = 'azure', api_version = '1', models = ['m'], \
             url = 'http://a/openai/v1' }]",
            "expected the URL of the resource, such as \"http://a\"",
        ),
        (
            "router.upstreams = [{ name = 'a', url = 'http://a/v1' }, { name = 'a', url = 'http://b/v1' }]",
            "\"a\" is listed twice; give each upstream a name of its own",
        ),
    ] {
        check_error(text, message);
    }
}

#[test]
fn config_hosts_must_not_share_an_address() {
    for (text, shared) in [
        ("hosts.flows.listen = \"0.0.0.0:8443\"", true),
        ("hosts.flows.listen = \"127.0.0.1:8444\"", true),
        ("hosts.ollama.listen = \"127.0.0.1:8444\"", true),
        ("hosts.flows.listen = \"[::]:8444\"", true),
        ("hosts.flows.listen = \"[::1]:8444\"", false),
        ("hosts.flows.listen = [\"127.0.0.1:0\", \"127.0.0.1:0\"]", false),
        ("hosts.flows.listen = [\"127.0.0.1:1\", \"127.0.0.1:1\"]", true),
        ("metrics.listen = \"127.0.0.1:8447\"", true),
        ("metrics.listen = []", false),
    ] {
        let message = errors(text);
        assert_eq!(message.contains("listen"), shared, "{text}: {message}");
        assert!(!shared || message.starts_with("1:"), "the place is reported: {message}");
    }
}

#[test]
fn config_public_url_follows_listen_address_and_tls_mode() {
    for (text, expected) in [
        ("", "https://box.lan:8443"),
        ("tls.mode = \"off\"", "http://box.lan:8443"),
        ("hosts.base.listen = \"10.0.0.7:443\"", "https://10.0.0.7"),
        ("hosts.base.listen = \"127.0.0.1:80\"", "http://127.0.0.1"),
        ("hosts.base.listen = [\"[::1]:81\", \"0.0.0.0:82\"]", "http://[::1]:81"),
        ("hosts.base.public_url = \"https://ai.example/\"", "https://ai.example"),
    ] {
        assert_eq!(good(text).hosts.base.public_url, expected, "{text}");
    }
}

#[test]
fn config_secret_file_must_not_be_accessible_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    std::fs::write(&path, "sk-secret\n").unwrap();
    let text = "[backup]\npassphrase_file = \"key\"\n";
    for (mode, accepted) in [(0o600, true), (0o640, true), (0o644, false), (0o660, false)] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let (config, errors, _) = read(text, folder.path(), &defaults());
        assert_eq!(errors.is_empty(), accepted, "{mode:o}: {errors:?}");
        let secret = config.backup.passphrase;
        assert_eq!(secret.as_ref().map(Secret::expose), accepted.then_some("sk-secret"));
        assert!(!format!("{secret:?}{errors:?}").contains("sk-secret"));
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let key = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p";
    let (_, errors, _) = read(&format!("{text}recipient = \"{key}\""), folder.path(), &defaults());
    assert!(errors[0].message.contains("set only one of them"), "{errors:?}");
}

#[test]
fn config_load_error_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    let missing = Config::load(&path).unwrap_err();
    assert!(missing[0].to_string().starts_with("cannot open "), "{missing:?}");
    std::fs::write(&path, "data_dir = \"data\"\n").unwrap();
    assert_eq!(Config::load(&path).unwrap().data_dir, folder.path().join("data"));
    std::fs::write(&path, vec![b'#'; 1024 * 1024 + 1]).unwrap();
    assert!(Config::load(&path).unwrap_err()[0].message.contains("larger than"));
}

#[test]
fn config_paths_are_absolute() {
    let here = std::env::current_dir().unwrap();
    assert_eq!(super::absolute(Path::new("")), here);
    let text = "data_dir = 'data'\nmodels_dir = './models.d'\n[backup]\nfolder = '../copies'\n\
        [audit]\nfolder = 'log'\n[tls]\nmode = 'files'\ncertificate = 'c.pem'\nprivate_key = 'k.pem'\n\
        [[agent.mcp_servers]]\nname = 'notes'\ncommand = ['./serve']\ndirectory = 'notes'\n\
        writable = ['notes/data']\n";
    for folder in ["", ".", "etc"] {
        let (config, _errors, _) = read(text, Path::new(folder), &defaults());
        let mut paths = vec![
            config.data_dir.clone(),
            config.models_dir.clone(),
            config.backup.folder.clone(),
            config.audit.folder.clone(),
        ];
        match &config.tls.mode {
            TlsMode::Files { certificate, private_key } => {
                paths.extend([certificate.clone(), private_key.clone()]);
            }
            TlsMode::Auto | TlsMode::SelfSigned | TlsMode::Acme(_) | TlsMode::Off => {
                panic!("the mode is `files`")
            }
        }
        for server in &config.agent.mcp_servers {
            match &server.transport {
                McpTransport::Program { directory, writable, .. } => {
                    paths.push(directory.clone());
                    paths.extend(writable.iter().cloned());
                }
                McpTransport::Http { .. } => {}
            }
        }
        assert_eq!(paths.len(), 8, "{folder}: {paths:?}");
        for path in paths {
            assert!(path.starts_with(here.join(folder)), "{folder}: {}", path.display());
        }
    }
}

#[test]
fn config_invalid_acme_value_names_expected_form() {
    for (text, expected) in [
        (
            "tls.mode = \"acme\"\n[hosts]\none_port = \"10.0.0.1:443\"\n\
             base.public_url = \"https://10.0.0.1\"",
            "needs `tls.acme.domains`, or a `public_url`",
        ),
        ("tls.acme.domains = [\"a.example\"]", "is read in `mode = \"acme\"` only"),
        ("tls = { mode = \"acme\", acme = { domains = [\"*.a.b\"] } }", "list each name"),
        ("tls = { mode = \"acme\", acme = { domains = [\"10.0.0.1\"] } }", "expected a DNS name"),
        ("tls.acme.directory = \"http://ca\"", "expected an https URL"),
        ("tls.acme.contact = [\"mailto:a\"]", "expected a mail address"),
        ("tls.acme.contact = [\"a@b?cc=c@d\"]", "expected a mail address"),
    ] {
        assert!(errors(text).contains(expected), "{text}: {}", errors(text));
    }
}

#[test]
fn config_acme_takes_names_from_public_urls() {
    let text = "hosts.base.public_url = 'https://AI.example.com'\n\
                hosts.flows.public_url = 'https://ai.example.com:8445'\n\
                hosts.agent.public_url = 'https://10.0.0.1'\n\
                hosts.workflows.public_url = 'https://box:8444'\n\
                hosts.dashboard.public_url = 'https://people.example.com'\n\
                tls.mode = 'acme'\n";
    let acme = |text: &str| {
        let TlsMode::Acme(acme) = good(text).tls.mode else { panic!("the mode is `acme`") };
        acme
    };
    let made = acme(text);
    assert_eq!(made.domains, ["ai.example.com", "people.example.com"]);
    assert_eq!(made.cache, Path::new("/var/lib/orrery/acme"));
    assert_eq!(made.directory, "https://acme-v02.api.letsencrypt.org/directory");
    let made = acme(&format!("{text}tls.acme.domains = ['Box.lan', 'localhost']"));
    assert_eq!(made.domains, ["box.lan", "localhost"]);
}

#[test]
fn config_program_after_backups_is_found_from_any_folder() {
    let here = std::env::current_dir().unwrap();
    for (program, expected) in [
        ("./copy.sh", here.join("etc/./copy.sh").display().to_string()),
        ("bin/copy", here.join("etc/bin/copy").display().to_string()),
        ("../copy", here.join("etc/../copy").display().to_string()),
        ("rsync", "rsync".to_owned()),
        ("/opt/copy", "/opt/copy".to_owned()),
    ] {
        let text = format!("[backup]\nevery = '1h'\nafter = ['{program}', './argument']\n");
        let (config, _errors, _) = read(&text, Path::new("etc"), &defaults());
        assert_eq!(config.backup.after, [expected, "./argument".to_owned()]);
    }
}

proptest::proptest! {
    #[test]
    fn config_reader_never_panics(text in "[\\[\\]a-z.=\"{}#$: 0-9\n-]{0,80}") {
        let _read = read(&text, Path::new(""), &defaults());
    }
}
