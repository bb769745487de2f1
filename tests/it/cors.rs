//! Cross-origin requests of browsers: by default, no origin is allowed; otherwise, exactly the
//! configured origins are allowed.

use hyper::Method;
use orrery_api::Role;

use crate::support::{Answer, Service};

const ORIGIN: &str = "https://app.example";

async fn ask(service: &Service, method: Method, path: &str, origin: &str) -> Answer {
    let ask = service.ask(Role::Base, method, path).header("origin", origin);
    ask.header("access-control-request-method", "POST").send().await
}

#[tokio::test]
async fn cors_is_off_by_default() {
    let service = Service::start().await;
    let answer = ask(&service, Method::GET, "/v1/models", ORIGIN).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("access-control-allow-origin"), "");
    let preflight = ask(&service, Method::OPTIONS, "/v1/prediction", ORIGIN).await;
    preflight.expect_error(405, "method not allowed");
    assert_eq!(preflight.header("access-control-allow-origin"), "");
}

#[tokio::test]
async fn cors_allowed_origin_gets_headers_on_preflight_and_errors() {
    let service = Service::configured(&format!("cors.allow_origins = ['{ORIGIN}']\n")).await;
    let preflight = ask(&service, Method::OPTIONS, "/v1/prediction/", ORIGIN).await;
    assert_eq!((preflight.status, preflight.text.as_str()), (204, ""));
    assert_eq!(preflight.header("access-control-allow-origin"), ORIGIN);
    assert_eq!(preflight.header("access-control-allow-methods"), "POST");
    let headers = preflight.header("access-control-allow-headers");
    for name in [
        "authorization",
        "x-api-key",
        "content-type",
        "anthropic-version",
        "idempotency-key",
        "if-match",
        "if-none-match",
        "prefer",
        "range",
        "x-session-id",
    ] {
        assert!(headers.split(", ").any(|header| header == name), "{name}: {headers}");
    }
    assert!(!headers.contains("stainless"), "{headers}");
    let own = "authorization, X-Stainless-Arch,x-stainless-os , x-stainless-a b, x-evil";
    let asked = service.ask(Role::Base, Method::OPTIONS, "/openai/v1/chat/completions");
    let asked = asked.header("origin", ORIGIN).header("access-control-request-headers", own);
    let preflight = asked.send().await;
    assert_eq!((preflight.status, preflight.text.as_str()), (204, ""));
    let headers = preflight.header("access-control-allow-headers");
    for (name, is_allowed) in
        [("X-Stainless-Arch", true), ("x-stainless-os", true), ("x-stainless-a b", false)]
    {
        assert_eq!(headers.split(", ").any(|header| header == name), is_allowed, "{headers}");
    }
    assert!(!headers.contains("evil"), "{headers}");
    for (path, status) in [("/v1/models", 200), ("/v1/prediction/x", 401), ("/v1/nothing", 404)] {
        let answer = ask(&service, Method::GET, path, ORIGIN).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("access-control-allow-origin"), ORIGIN, "{path}");
        assert_eq!(answer.header("vary"), "origin", "{path}");
        let shown = answer.header("access-control-expose-headers");
        for name in ["x-request-id", "x-session-id", "x-task-id", "etag", "warning"] {
            assert!(shown.split(", ").any(|header| header == name), "{name}: {shown}");
        }
    }
    for origin in ["https://evil.example", "https://app.example.evil.example", "null"] {
        let answer = ask(&service, Method::GET, "/v1/models", origin).await;
        assert_eq!(answer.header("access-control-allow-origin"), "", "{origin}");
        let preflight = ask(&service, Method::OPTIONS, "/v1/prediction", origin).await;
        assert_eq!(preflight.status, 405, "{origin}");
    }
}

#[tokio::test]
async fn cors_star_allows_every_origin() {
    let service = Service::configured("cors.allow_origins = ['*']\n").await;
    for origin in [ORIGIN, "http://localhost:3000"] {
        let answer = ask(&service, Method::GET, "/v1/models", origin).await;
        assert_eq!(answer.header("access-control-allow-origin"), origin);
    }
}
