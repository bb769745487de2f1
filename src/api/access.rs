//! Who calls: the key in either header form or in the body, and the token buckets behind it.

use hyper::header::{AUTHORIZATION, HeaderMap};
use serde_json::Value;

use super::{Access, Rate, Services};
use crate::accounts::Caller;
use crate::domain::ids::OrganizationId;
use crate::http::{self, Call};
use crate::links;

/// Who is let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admitted {
    /// Someone of whom nothing is known.
    Anyone,
    /// The holder of a key.
    Caller(Caller),
    /// The holder of a link of this organization.
    Link(OrganizationId),
}

impl Admitted {
    /// The holder of a key, if it is one.
    #[must_use]
    pub const fn caller(&self) -> Option<Caller> {
        match self {
            Self::Caller(caller) => Some(*caller),
            Self::Anyone | Self::Link(_) => None,
        }
    }
}

/// Who is let in, as `access` demands.
///
/// # Errors
/// 401 without a valid key or link; what reading the body refuses, where it carries the key; 503 when the store cannot be read.
pub async fn check(
    services: &Services,
    access: Access,
    call: &mut Call,
) -> Result<Admitted, http::Error> {
    let in_body = match access {
        Access::Public | Access::Local => return Ok(Admitted::Anyone),
        Access::Key | Access::Link => None,
        Access::BodyKey => key_in_body(call).await?,
    };
    let presented = in_body.as_deref().or_else(|| presented_key(&call.headers));
    let Some(presented) = presented else {
        let token = call.query.get(links::PARAMETER).filter(|_| access == Access::Link);
        let opened = token.and_then(|token| services.links.check(&call.path, token));
        return opened.map(Admitted::Link).ok_or_else(http::Error::unauthorized);
    };
    let caller = services.accounts.authenticate(presented).await?;
    caller.map(Admitted::Caller).ok_or_else(http::Error::unauthorized)
}

/// The `api_key` of a body, which the handler reads again. A body that is no JSON is the handler's
/// to refuse, once it is known who calls.
async fn key_in_body(call: &mut Call) -> Result<Option<String>, http::Error> {
    let bytes = call.body().await?;
    let body: Result<Value, _> = serde_json::from_slice(&bytes);
    call.give_back(bytes);
    Ok(body.ok().and_then(|body| Some(body.get("api_key")?.as_str()?.to_owned())))
}

/// Draws one request from the caller's bucket.
///
/// # Errors
/// 429 with `Retry-After` when it is empty.
pub fn draw(services: &Services, rate: Rate, caller: Option<&Caller>) -> Result<(), http::Error> {
    let limiter = match rate {
        Rate::Free => None,
        Rate::Configured => services.rate.as_ref(),
        Rate::Balance => Some(&services.balance_rate),
    };
    let (Some(limiter), Some(caller)) = (limiter, caller) else { return Ok(()) };
    limiter.check(caller.key).map_err(|wait| http::Error::too_many("too many requests", wait))
}

/// The key in `X-API-Key`, or in `Authorization: Bearer` (the scheme in any letter case).
fn presented_key(headers: &HeaderMap) -> Option<&str> {
    if let Some(key) = headers.get("x-api-key") {
        return key.to_str().ok().map(str::trim);
    }
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_header_forms_carry_a_key() {
        for (name, value, key) in [
            ("x-api-key", "smk_a", Some("smk_a")),
            ("X-API-KEY", " smk_a ", Some("smk_a")),
            ("authorization", "Bearer smk_a", Some("smk_a")),
            ("Authorization", "bearer  smk_a", Some("smk_a")),
            ("Authorization", "Basic smk_a", None),
            ("Authorization", "smk_a", None),
            ("Cookie", "smk_a", None),
        ] {
            let mut headers = HeaderMap::new();
            let name = hyper::header::HeaderName::try_from(name).unwrap();
            headers.insert(name, value.parse().unwrap());
            assert_eq!(presented_key(&headers), key, "{value}");
        }
    }
}
