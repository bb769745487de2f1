//! Basic credentials (RFC 7617), including those in URLs, which hyper drops.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::http::uri::Authority;
use hyper::{Request, Uri};
use percent_encoding::percent_decode_str;

/// Moves `user:password@` from the URL of a request to its `Authorization` header, unless the
/// request has that header.
pub fn take_from_url<B>(request: &mut Request<B>) {
    let authority = request.uri().authority().map(Authority::as_str).unwrap_or_default();
    let Some((userinfo, host)) = authority.rsplit_once('@') else { return };
    let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
    let decoded = |text: &str| percent_decode_str(text).collect::<Vec<u8>>();
    let header = header(&decoded(user), &decoded(password)).filter(|_| !userinfo.is_empty());
    let mut parts = request.uri().clone().into_parts();
    parts.authority = host.parse().ok();
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    if let Some(header) = header {
        request.headers_mut().entry(AUTHORIZATION).or_insert(header);
    }
}

/// Returns the value of the `Authorization` header, marked as sensitive. Returns `None` if the user
/// name contains a colon, because the colon would end the name.
#[must_use]
pub fn header(user: &[u8], password: &[u8]) -> Option<HeaderValue> {
    if user.contains(&b':') {
        return None;
    }
    let credentials = STANDARD.encode([user, b":", password].concat());
    let mut value = HeaderValue::from_str(&format!("Basic {credentials}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn basic_auth_moves_from_url_to_header() {
        for (url, sent, header) in [
            ("http://h/p?q", "http://h/p?q", None),
            ("http://al%40ice:p%40ss@h:81/p", "http://h:81/p", Some("al@ice:p@ss")),
            ("https://u@h/", "https://h/", Some("u:")),
            ("http://u:a:b%C3%A9@[::1]/", "http://[::1]/", Some("u:a:b\u{e9}")),
            ("http://@h/", "http://h/", None),
            ("http://a%3Ab:c@h/", "http://h/", None),
        ] {
            let mut request = Request::get(url).body(()).unwrap();
            take_from_url(&mut request);
            assert_eq!(request.uri().to_string(), sent);
            let expect = header.map(|text| format!("Basic {}", STANDARD.encode(text)));
            let found = request.headers().get(AUTHORIZATION).map(|value| value.to_str().unwrap());
            assert_eq!(found, expect.as_deref(), "{url}");
        }
        let own = Request::get("http://u:p@h/").header(AUTHORIZATION, "Bearer t");
        let mut own = own.body(()).unwrap();
        take_from_url(&mut own);
        assert_eq!(own.headers()[AUTHORIZATION], "Bearer t");
    }
}
