//! The second factor of the logged-in member: set-up, confirmation and removal.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use qrcode::render::svg;
use qrcode::{EcLevel, QrCode};

use super::Context;
use super::doc::{Doc, RequestDoc, ResponseDoc};
use orrery_domain::ids::MemberId;
use orrery_http::{Response, response};
use orrery_records::members::{self, Enrolment};
use orrery_wire::member::{NewSecondFactor, PasswordProof, SecondFactorCode};
use orrery_wire::operator;

const MANY: ResponseDoc =
    ResponseDoc::error(429, "Too many attempts: retry after `Retry-After` seconds");
const ALREADY: ResponseDoc =
    ResponseDoc::error(409, "A second factor is set up already, or the member has no password");

pub(crate) const BEGIN: Doc = Doc {
    responses: &[
        ResponseDoc::json::<NewSecondFactor>(
            200,
            "The secret and the recovery codes. This is the only response with them",
        ),
        ALREADY,
    ],
    description: "Creates a secret for an authenticator app (RFC 6238: SHA-1, six digits, 30 \
                  seconds) and ten recovery codes. Log-ins need a code only after the second \
                  factor was confirmed.",
    ..Doc::new("sessions", "begin_second_factor", "Begin to set up a second factor")
};

/// `POST /session/totp`
pub(crate) async fn begin(context: Context) -> Result<Response, crate::Error> {
    let members = context.services.members.by(context.actor());
    let begun = members.begin_second_factor(&context.visit()?.member).await?;
    let Enrolment { secret, url, recovery_codes } = begun;
    let qr_code = picture(&url)?;
    let body = NewSecondFactor { secret, url, qr_code, recovery_codes };
    Ok(response::json(StatusCode::OK, &body))
}

/// Returns a QR code as a `data:` URL.
fn picture(text: &str) -> Result<String, crate::Error> {
    let code = QrCode::with_error_correction_level(text, EcLevel::M);
    let code = code.map_err(crate::Error::internal)?;
    let svg = code.render::<svg::Color<'_>>().min_dimensions(220, 220).build();
    Ok(format!("data:image/svg+xml;base64,{}", STANDARD.encode(svg)))
}

pub(crate) const CONFIRM: Doc = Doc {
    request: Some(RequestDoc::json::<SecondFactorCode>()),
    responses: &[
        ResponseDoc::empty(204, "Log-ins need a code from now on"),
        ALREADY,
        ResponseDoc::error(422, "The code is wrong"),
        MANY,
    ],
    description: "Confirms the second factor with a code of the authenticator app. From now on, \
                  log-ins need a code.",
    ..Doc::new("sessions", "confirm_second_factor", "Confirm the second factor")
};

/// `POST /session/totp/confirm`
pub(crate) async fn confirm(mut context: Context) -> Result<Response, crate::Error> {
    let SecondFactorCode { code } = context.request.json().await?;
    let members = context.services.members.by(context.actor());
    let from = context.request.peer.ip();
    let confirmed = members.confirm_second_factor(&context.visit()?.member, &code, from).await;
    confirmed.map_err(unprocessable)?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}

pub(crate) const REMOVE: Doc = Doc {
    request: Some(RequestDoc::json::<PasswordProof>()),
    responses: &[
        ResponseDoc::empty(204, "The second factor is removed"),
        ResponseDoc::error(409, "No second factor is set up"),
        ResponseDoc::error(422, "The password is wrong"),
        MANY,
    ],
    description: "Removes the second factor of the logged-in member. Log-ins need no code any \
                  more.",
    ..Doc::new("sessions", "delete_second_factor", "Remove the second factor")
};

/// `DELETE /session/totp`
pub(crate) async fn remove(mut context: Context) -> Result<Response, crate::Error> {
    let PasswordProof { password } = context.request.json().await?;
    let members = context.services.members.by(context.actor());
    let from = context.request.peer.ip();
    let removed = members.remove_second_factor(&context.visit()?.member, &password, from).await;
    removed.map_err(unprocessable)?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}

/// Maps a wrong password or code to 422, because a 401 would mean that the member is not logged in.
fn unprocessable(error: members::Error) -> crate::Error {
    if matches!(error, members::Error::WrongPassword) {
        return crate::Error::unprocessable("the password is wrong");
    }
    if matches!(error, members::Error::WrongCode) {
        return crate::Error::unprocessable(error.to_string());
    }
    error.into()
}

pub(crate) const RESET_OF: Doc =
    Doc::new("admin", "admin_delete_second_factor", "Remove a member's second factor");

/// `DELETE /admin/members/{id}/totp?organization=`
pub(crate) async fn reset_of(context: Context) -> Result<Response, crate::Error> {
    let missing = || crate::Error::not_found("member not found");
    let id: MemberId = context.request.param("id").parse().map_err(|_no_id| missing())?;
    let name = context.request.query.get("organization");
    let organization = context.services.accounts.organization_or_default(name).await?;
    let members = context.services.members.by(context.actor());
    let member = members.clear_second_factor(organization.id, id).await?;
    Ok(response::json(StatusCode::OK, &operator::Member::of(&member, &organization)))
}
