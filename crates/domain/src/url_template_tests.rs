//! URL templates: references stay in their component, whatever their values.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::reference::Inputs;
use super::*;

fn resolved(url: &str, inputs: Value) -> Result<String, String> {
    let template = Template::parse(&url.into()).unwrap();
    let url = UrlTemplate::of(&template).expect("text with a reference");
    let url = url.and_then(|url| url.resolve(&Inputs(inputs), 1 << 16));
    url.map(String::from).map_err(|error| error.to_string())
}

#[test]
fn url_reference_fills_one_component() {
    for (url, value, expect) in [
        (
            "http://h/u/{{inputs.a}}/p",
            json!("../headers?ignored="),
            "/u/..%2Fheaders%3Fignored%3D/p",
        ),
        ("http://h/u/{{inputs.a}}/p", json!("7?admin=true&x="), "/u/7%3Fadmin%3Dtrue%26x%3D/p"),
        ("http://h/u/{{inputs.a}}/p", json!("7#"), "/u/7%23/p"),
        ("http://h/u/{{inputs.a}}/p", json!("%2e%2e"), "/u/%252e%252e/p"),
        ("http://h/u/{{inputs.a}}/p", json!(".\t."), "/u/.%09./p"),
        ("http://h/u/{{inputs.a}}/p", json!("..\\..\\x"), "/u/..%5C..%5Cx/p"),
        ("http://h/u/{{inputs.a}}/p", json!("\0\r\n é日"), "/u/%00%0D%0A%20%C3%A9%E6%97%A5/p"),
        ("http://h/u/{{inputs.a}}/p", json!("a@b;c,d+e"), "/u/a%40b%3Bc%2Cd%2Be/p"),
        ("http://h/u/{{inputs.a}}/p", json!(7), "/u/7/p"),
        ("http://h/u/{{inputs.a}}/p", json!({"x": [1]}), "/u/%7B%22x%22%3A%5B1%5D%7D/p"),
        ("http://h/u/{{inputs.a}}/p", json!(null), "/u/null/p"),
        ("http://h/v{{inputs.a}}.json", json!(".."), "/v...json"),
        ("http://h/{{inputs.a}}{{inputs.a}}", json!("/"), "/%2F%2F"),
        ("http://h\\u\\v{{inputs.a}}", json!("\\x"), "/u/v%5Cx"),
        ("http:///h/{{inputs.a}}", json!("x"), "/x"),
        ("http://h/u/%{{inputs.a}}", json!("2F.."), "/u/%252F.."),
        ("http://h/u/%2{{inputs.a}}x", json!("F"), "/u/%252Fx"),
        ("http://h/q?x={{inputs.a}}&y=1", json!("a&admin=1"), "/q?x=a%26admin%3D1&y=1"),
        ("http://h/q?x={{inputs.a}}&y=1", json!("#"), "/q?x=%23&y=1"),
        ("http://h/q?{{inputs.a}}", json!("a=b&c"), "/q?a%3Db%26c"),
        ("http://h/q?{{inputs.a}}=1", json!("a=b&c"), "/q?a%3Db%26c=1"),
        ("http://h?{{inputs.a}}", json!("/../"), "/?%2F..%2F"),
        ("http://h/q?to=http://x/{{inputs.a}}/y", json!(".."), "/q?to=http://x/../y"),
        ("http://h/p#{{inputs.a}}", json!("?#/.."), "/p#%3F%23%2F.."),
        ("http://h/\n{{inputs.a}}\n", json!("x"), "/x"),
    ] {
        let expect = format!("http://h{expect}");
        assert_eq!(resolved(url, json!({"a": value})).as_deref(), Ok(&*expect), "{url}");
    }
}

#[test]
fn url_reference_in_credentials_stays_user_name_or_password() {
    for (url, expect) in [
        ("http://{{inputs.a}}:p@h/", "http://x%40y%3A%2F:p@h/"),
        ("http://u:{{inputs.a}}@[::1]:8/", "http://u:x%40y%3A%2F@[::1]:8/"),
        ("http://{{inputs.a}}@h?x", "http://x%40y%3A%2F@h/?x"),
    ] {
        assert_eq!(resolved(url, json!({"a": "x@y:/"})).as_deref(), Ok(expect));
    }
}

#[test]
fn url_reference_never_makes_an_empty_or_dot_segment() {
    for (url, value, expect) in [
        ("http://h/u/{{inputs.a}}/p", "..", "segment '..'"),
        ("http://h/u/{{inputs.a}}", ".", "segment '.'"),
        ("http://h/{{inputs.a}}", "", "an empty path segment"),
        ("http://h/u/.{{inputs.a}}/p", ".", "segment '..'"),
        ("http://h/u/%2E{{inputs.a}}?x", ".", "segment '..'"),
        ("http://h/u/{{inputs.a}}{{inputs.a}}", ".", "segment '..'"),
        ("http://h/u/{{inputs.a}}{{inputs.a}}/", "", "an empty path segment"),
        ("http://h/u/{{inputs.a}} ", "..", "segment '..'"),
        ("http://h\\u\\.{{inputs.a}}\\p", ".", "segment '..'"),
        ("http://h/u/.\t{{inputs.a}}/p", ".", "segment '..'"),
    ] {
        let error = resolved(url, json!({"a": value})).unwrap_err();
        assert!(error.contains(expect) && error.contains("{{inputs.a}}"), "{url}: {error}");
    }
}

#[test]
fn url_reference_in_scheme_host_or_port_is_rejected() {
    for url in [
        "http://h{{inputs.a}}",
        "http://127.0.0.1:{{inputs.a}}/y",
        "http://{{inputs.a}}/y",
        "http://{{inputs.a}}.example.com",
        "http://u@{{inputs.a}}/",
        "http://u@h:{{inputs.a}}?@",
        "http://{{inputs.a}}/@h",
        "http://[{{inputs.a}}]/",
        "http:///{{inputs.a}}/",
        "http://\\\t/{{inputs.a}}",
        "{{inputs.a}}://h/",
        "{{inputs.a}}/x",
        "{{inputs.a}}{{inputs.a}}",
    ] {
        let error = resolved(url, json!({"a": "x"})).unwrap_err();
        assert!(error.contains("scheme, host or port"), "{url}: {error}");
    }
    for url in
        ["ftp://h/{{inputs.a}}", "htt{{inputs.a}}", "/x/{{inputs.a}}", "http:/h/{{inputs.a}}"]
    {
        let error = resolved(url, json!({"a": "x"})).unwrap_err();
        assert!(error.contains("absolute http or https URL"), "{url}: {error}");
    }
}

/// Generates text with special meaning to URL parsers.
fn any_value() -> impl Strategy<Value = String> {
    let special = prop::sample::select(vec![
        ".", "..", "%2e", "/", "\\", "?", "#", "%", "@", ":", "&", "=", "\t", "\n", "\0", " ", "é",
        "//", "[::1]", "x",
    ]);
    prop::collection::vec(prop_oneof![special.prop_map(str::to_owned), any::<String>()], 0..6)
        .prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn url_values_never_change_the_target(one in any_value(), two in any_value(), shape in 0..6_usize) {
        let url = [
            "https://u:{{inputs.a}}@h.example:8443/a/{{inputs.b}}/z?k={{inputs.a}}&l=1#{{inputs.b}}",
            "https://{{inputs.a}}:{{inputs.b}}@h.example:8443/a/b/z",
            "https://h.example:8443/{{inputs.a}}/{{inputs.b}}/z?{{inputs.a}}",
            "https://h.example:8443/{{inputs.a}}{{inputs.b}}/b/.{{inputs.a}}",
            "https://h.example:8443\\a\\%2{{inputs.a}}\\%2e{{inputs.b}} ",
            "https://h.example:8443/a/b\t/{{inputs.a}}\n{{inputs.b}}\n",
        ][shape];
        if let Ok(text) = resolved(url, json!({"a": one, "b": two})) {
            let url = Url::parse(&text).unwrap();
            prop_assert_eq!((url.scheme(), url.host_str(), url.port()), ("https", Some("h.example"), Some(8443)));
            prop_assert_eq!(url.path_segments().unwrap().count(), 3, "{}", text);
            if shape == 0 {
                let pairs: Vec<_> = url.query_pairs().collect();
                prop_assert_eq!(pairs.len(), 2);
                prop_assert_eq!((&*pairs[0].1, &*pairs[1].1), (&*one, "1"));
            }
        }
    }
}
