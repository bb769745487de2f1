//! Who calls: the key in either header form, and the token buckets behind it.

use hyper::header::{AUTHORIZATION, HeaderMap};

use super::{Access, Rate, Services};
use crate::accounts::Caller;
use crate::http;

/// The caller that `access` demands, or `None` where it demands none.
///
/// # Errors
/// 401 without a valid key; 503 when the store cannot be read.
pub async fn check(
    services: &Services,
    access: Access,
    headers: &HeaderMap,
) -> Result<Option<Caller>, http::Error> {
    match access {
        Access::Public | Access::Local => Ok(None),
        Access::Key => {
            let presented = presented_key(headers).ok_or_else(http::Error::unauthorized)?;
            let caller = services.accounts.authenticate(presented).await?;
            caller.map(Some).ok_or_else(http::Error::unauthorized)
        }
    }
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
