//! Checks that a request names exactly one host (RFC 9112 section 3.2, RFC 9113 section 8.3.1). If
//! two parsers disagree on the host, an attacker can smuggle requests past a proxy.

use hyper::header::HOST;
use hyper::http::uri::Authority;
use hyper::{Request, Version};

use super::Error;

/// Checks the `Host` header fields and, over HTTP/2, `:authority`.
///
/// # Errors
/// 400 if the host is missing, repeated or malformed, or if `Host` and `:authority` differ.
pub fn check<B>(request: &Request<B>) -> Result<(), Error> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(Error::bad_request("the request has more than one Host header"));
    }
    let host = host.map(|host| {
        let text = host.to_str().ok().filter(|text| !text.contains('@'));
        let is_valid = text.filter(|text| text.is_empty() || text.parse::<Authority>().is_ok());
        is_valid.ok_or_else(|| Error::bad_request("the Host header is malformed"))
    });
    let host = host.transpose()?;
    let authority = request.uri().authority().map(Authority::as_str);
    if authority.is_some_and(|authority| authority.contains('@')) {
        return Err(Error::bad_request("the authority of the request must not name a user"));
    }
    match (request.version(), host, authority) {
        (Version::HTTP_11, None, _) => Err(Error::bad_request("the request has no Host header")),
        (Version::HTTP_2, None, None) => {
            Err(Error::bad_request("the request has neither :authority nor a Host header"))
        }
        (Version::HTTP_2, Some(host), Some(authority)) if !host.eq_ignore_ascii_case(authority) => {
            Err(Error::bad_request("the Host header differs from :authority"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(version: Version, uri: &str, hosts: &[&str]) -> String {
        let mut request = Request::builder().version(version).uri(uri);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        check(&request.body(()).unwrap()).map_or_else(|error| error.message, |()| String::new())
    }

    #[test]
    fn authority_must_be_given_exactly_once() {
        const H1: Version = Version::HTTP_11;
        const H2: Version = Version::HTTP_2;
        for (version, uri, hosts, expect) in [
            (H1, "/", &["a"][..], ""),
            (H1, "/", &["a:8443"], ""),
            (H1, "/", &["[::1]:8443"], ""),
            (H1, "/", &[""], ""),
            (H1, "http://a/", &["a"], ""),
            (H1, "/", &[], "the request has no Host header"),
            (H1, "http://a/", &[], "the request has no Host header"),
            (H1, "/", &["a", "a"], "the request has more than one Host header"),
            (H1, "/", &["a", "b"], "the request has more than one Host header"),
            (H1, "/", &["a b"], "the Host header is malformed"),
            (H1, "/", &["a/b"], "the Host header is malformed"),
            (H1, "/", &["user@a"], "the Host header is malformed"),
            (Version::HTTP_10, "/", &[], ""),
            (Version::HTTP_10, "/", &["a", "b"], "the request has more than one Host header"),
            (H2, "http://a/", &[], ""),
            (H2, "http://a/", &["A"], ""),
            (H2, "/", &["a"], ""),
            (H2, "/", &[], "the request has neither :authority nor a Host header"),
            (H2, "http://a/", &["b"], "the Host header differs from :authority"),
            (H2, "http://a/", &["a", "a"], "the request has more than one Host header"),
            (H2, "http://u@a/", &[], "the authority of the request must not name a user"),
        ] {
            assert_eq!(refusal(version, uri, hosts), expect, "{version:?} {uri} {hosts:?}");
        }
    }
}
