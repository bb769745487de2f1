//! The documentation at `/docs` of the dashboard's host. `tests/site` runs these tests with a build
//! that contains it.

use hyper::Method;
use orrery_api::Role;

use crate::support::{Answer, Service};

/// Whether this build contains the documentation.
const IS_INCLUDED: bool = cfg!(feature = "docs");

async fn get(service: &Service, path: &str) -> Answer {
    service.ask(Role::Dashboard, Method::GET, path).send().await
}

#[tokio::test]
async fn documentation_is_served_without_session() {
    let service = Service::start().await;
    let entered = get(&service, "/docs").await;
    assert_eq!((entered.status, entered.header("location")), (302, "docs/"));
    let first = get(&service, "/docs/").await;
    assert_eq!(first.header("content-type"), "text/html; charset=utf-8");
    let policy = first.header("content-security-policy");
    assert!(policy.contains("script-src 'self';") && !policy.contains("unsafe"), "{policy}");
    if IS_INCLUDED {
        assert_eq!(first.status, 200);
        assert!(first.text.contains("<h1 id=\"documentation\">"), "{}", first.text);
    } else {
        assert_eq!(first.status, 404);
        assert!(first.text.contains("<code>docs/README.md</code>"), "{}", first.text);
    }
    let missing = get(&service, "/docs/tutorials/none.html").await;
    assert_eq!(missing.status, 404);
    assert_eq!(missing.text.contains("href=\"../index.html\""), IS_INCLUDED, "{}", missing.text);
}

#[cfg(feature = "docs")]
mod included {
    use super::*;
    use crate::support::chromium::Chromium;
    use crate::support::until;

    /// Returns whether the page's script has made every scrollable box focusable.
    const FOCUSABLE: &str = "return [...document.querySelectorAll('pre, .table-wrapper')] \
        .every((box) => box.scrollWidth <= box.clientWidth || box.tabIndex === 0)";

    #[tokio::test]
    async fn documentation_files_are_compressed_and_revalidated() {
        let service = Service::start().await;
        let ask = |path: &str| service.ask(Role::Dashboard, Method::HEAD, path);
        for (path, kind) in [
            ("/docs/tutorials/pipeline.html", "text/html; charset=utf-8"),
            ("/docs/docs.css", "text/css; charset=utf-8"),
            ("/docs/docs.js", "text/javascript; charset=utf-8"),
            ("/docs/search.json", "application/json"),
            ("/docs/pictures/run.png", "image/png"),
            ("/docs/examples/proxy/Caddyfile", "text/plain; charset=utf-8"),
        ] {
            let plain = ask(path).send().await;
            assert_eq!((plain.status, plain.header("content-type")), (200, kind), "{path}");
            assert_eq!(plain.headers.get("content-encoding"), None, "{path}");
            let tag = plain.header("etag");
            let packed = ask(path).header("accept-encoding", "gzip").send().await;
            assert_eq!((packed.header("content-encoding"), packed.header("etag")), ("gzip", tag));
            let again = ask(path).header("if-none-match", tag).send().await;
            assert_eq!((again.status, again.header("cache-control")), (304, "no-cache"), "{path}");
        }
    }

    #[tokio::test]
    #[ignore = "needs Chromium, and axe-core from npm: run tests/site"]
    async fn documentation_is_read_and_searched_in_a_browser() {
        let service = Service::start().await;
        let browser = Chromium::start().await;
        for (path, text) in [
            ("/docs/", "Why believe it"),
            ("/docs/tutorials/pipeline.html", "A pipeline with approval"),
            ("/docs/reference/http-base.html", "Create a prediction"),
        ] {
            browser.open(&service, path).await;
            browser.see(text).await;
            for (look, width, is_dark) in
                [("wide", 1280, false), ("wide-dark", 1280, true), ("narrow", 390, false)]
            {
                browser.looks(width, is_dark).await;
                let page = path.trim_matches('/').replace(['/', '.'], "-");
                browser.picture(&format!("{page}-{look}")).await;
                until("boxes that scroll are focusable", async || {
                    (browser.run(FOCUSABLE).await == true).then_some(())
                })
                .await;
                browser.is_accessible(path).await;
                let overflow = "return document.documentElement.scrollWidth > document.documentElement.clientWidth";
                assert_eq!(browser.run(overflow).await, false, "{path} at {width} pixels");
            }
        }
        browser.press("Contents").await;
        browser.see("Tutorials").await;
        browser.looks(1280, false).await;
        browser.run("document.getElementById('query').focus()").await;
        browser.keys("idempotency").await;
        browser.see(" sections").await;
        browser.picture("docs-search").await;
        browser.find("//section[@id='results']//a[contains(., 'Idempotency')]").await.click().await;
        browser.see("Idempotency").await;
        let path = browser.run("return location.pathname").await;
        assert!(path.as_str().unwrap().starts_with("/docs/"), "{path}");
        browser.leave().await;
    }
}
