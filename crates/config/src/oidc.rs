//! The section `dashboard.oidc`: the identity provider through which people log in.

use std::path::Path;

use serde_json::json;

use super::Secret;
use super::reader::{Parsed, Section};
use super::values::{
    self, Value, list, map, one_of, problem, secret, text, web_address, wrong, wrong_type,
};
use orrery_domain::member::MemberRole;

/// An OpenID provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Oidc {
    /// The issuer as tokens name it.
    pub issuer: String,
    pub client_id: String,
    pub client_secret: Secret,
    pub scopes: Vec<String>,
    /// The claim with a person's groups: a name, or a JSON Pointer.
    pub claim: String,
    /// The label of the button on the log-in page.
    pub button: String,
    /// What the members of each group may do. Other people cannot log in.
    pub map: Vec<OidcGroup>,
}

/// What the members of a group may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OidcGroup {
    pub name: String,
    pub organization: String,
    pub role: MemberRole,
}

/// Expected form of an entry in `map`.
const GROUP: &str = "a table such as { organization = \"default\", role = \"editor\" }";

/// Reads the section. The path of a secret is resolved against `folder`.
pub(super) fn oidc(section: &mut Section<'_>, folder: &Path) -> Option<Oidc> {
    let issuer = section.optional("issuer", issuer);
    let client_id = section.optional("client_id", text);
    let client_secret = section.optional("client_secret", secret(folder));
    let scopes = ["openid", "email", "profile"].map(str::to_owned).to_vec();
    let scopes = section.get("scopes", scopes, list(scope));
    let claim = section.get("claim", "groups".to_owned(), text);
    let button = section.get("button", "Log in with single sign-on".to_owned(), text);
    let map = section.get("map", Vec::new(), map(group));
    if !scopes.iter().any(|scope| scope == "openid") {
        section.error("scopes", "`dashboard.oidc.scopes` must contain \"openid\"".to_owned());
    }
    let needed = ["issuer", "client_id", "client_secret"];
    let (given, missing): (Vec<&str>, Vec<&str>) =
        needed.into_iter().partition(|name| section.span(name).is_some());
    let given = given.first().or(if map.is_empty() { None } else { Some(&"map") });
    if let (Some(given), Some(missing)) = (given, missing.first()) {
        section.error(given, format!("`dashboard.oidc` needs `{missing}`, too"));
    }
    if issuer.is_some() && missing.is_empty() && map.is_empty() && section.span("map").is_none() {
        let message = "`dashboard.oidc` needs `map`: without a group, nobody can log in";
        section.error("issuer", message.to_owned());
    }
    Some(Oidc {
        issuer: issuer?,
        client_id: client_id?,
        client_secret: client_secret?,
        scopes,
        claim,
        button,
        map,
    })
}

/// Parses the issuer, which tokens repeat letter by letter. Without TLS, everyone on the network
/// could log in as anyone, so plain HTTP is allowed only on this machine.
fn issuer(value: &Value<'_>) -> Parsed<String> {
    web_address(value)?;
    let issuer = values::string(value)?;
    let url = url::Url::parse(&issuer).ok();
    let is_local = url.as_ref().and_then(url::Url::host).is_some_and(|host| match host {
        url::Host::Domain(name) => name == "localhost",
        url::Host::Ipv4(address) => address.is_loopback(),
        url::Host::Ipv6(address) => address.is_loopback(),
    });
    if url.is_some_and(|url| url.scheme() == "https") || is_local {
        return Ok(issuer);
    }
    Err(wrong(value, "an https address such as \"https://id.example.com\""))
}

fn scope(value: &Value<'_>) -> Parsed<String> {
    let scope = text(value)?;
    if scope.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\') {
        return Ok(scope);
    }
    Err(wrong(value, "the name of a scope, such as \"openid\""))
}

fn group(name: &str, value: &Value<'_>) -> Parsed<OidcGroup> {
    let table = value.get_ref().as_table().ok_or_else(|| {
        let expects = json!({
            "type": "object",
            "properties": {
                "organization": {"type": "string", "minLength": 1},
                "role": {"enum": MemberRole::GIVEN.map(MemberRole::as_str)},
            },
            "required": ["organization", "role"],
            "additionalProperties": false,
        });
        wrong_type(value, GROUP, expects)
    })?;
    let (mut organization, mut role) = (None, None);
    for (key, value) in table {
        match key.get_ref().as_ref() {
            "organization" => organization = Some(text(value)?),
            "role" => role = Some(one_of(&MemberRole::GIVEN, MemberRole::as_str)(value)?),
            other => {
                let keys = "the keys here are organization and role";
                return Err(problem(value, format!("unknown key `{other}`; {keys}")));
            }
        }
    }
    let missing = |key: &str| problem(value, format!("`{key}` is missing"));
    Ok(OidcGroup {
        name: name.to_owned(),
        organization: organization.ok_or_else(|| missing("organization"))?,
        role: role.ok_or_else(|| missing("role"))?,
    })
}
