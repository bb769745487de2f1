//! The balance route: its body, its own rate, its refusal where billing is off.

use hyper::Method;
use orrery::api::Role;
use orrery::domain::money::Usd;

use crate::support::Service;

#[tokio::test]
async fn the_balance_is_the_organizations_own_in_dollars() {
    let service = Service::start().await;
    let billing = &service.running.services.billing;
    service.get("/v1/billing/balance").await.expect_text(200, r#"{"balance_usd":0.0}"#);
    billing.top_up(service.organization.id, Usd::from_micros(53_475_000)).await.unwrap();
    service.get("/v1/billing/balance").await.expect_text(200, r#"{"balance_usd":53.475}"#);
    let other = service.ask(Role::Base, Method::GET, "/v1/billing/balance");
    other.key(&service.other_key).send().await.expect_text(200, r#"{"balance_usd":0.0}"#);
}

#[tokio::test]
async fn more_than_three_a_second_are_told_to_wait_one() {
    let service = Service::start().await;
    let many = std::iter::repeat_with(|| service.get("/v1/billing/balance")).take(30);
    let answers = futures_util::future::join_all(many).await;
    let passed = answers.iter().filter(|answer| answer.status == 200).count();
    assert!((3..30).contains(&passed), "{passed} passed");
    for refused in answers.iter().filter(|answer| answer.status != 200) {
        refused.expect_error(429, "too many requests");
        assert_eq!(refused.header("retry-after"), "1");
    }
    let other = service.ask(Role::Base, Method::GET, "/v1/billing/balance");
    other.key(&service.other_key).send().await.expect(200);
}

#[tokio::test]
async fn an_unavailable_balance_is_never_zero() {
    let service = Service::configured("billing.enabled = false\n").await;
    let answer = service.get("/v1/billing/balance").await;
    answer.expect_error(503, "service unavailable");
}
