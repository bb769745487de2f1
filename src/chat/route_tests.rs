//! What calls cost.

use std::time::Duration;

use super::*;

fn by_usage() -> Pricing {
    Pricing::UsageBased {
        estimate: None,
        per_second: None,
        per_million_input_tokens: Some(2.0),
        per_million_output_tokens: Some(10.0),
    }
}

fn tokens(input: u64, output: u64) -> Tokens {
    Tokens { input, output, is_estimated: false }
}

fn request(fields: &str) -> Request {
    let body = format!(
        "{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":\"12345678\"}}]{fields}}}"
    );
    Request::read(Operation::Chat, body.as_bytes()).unwrap()
}

#[test]
fn price_is_usage_times_list_price_and_fee_rounded_once() {
    for (pricing, fee, used, micros) in [
        (Some(by_usage()), 0.0, tokens(1000, 100), 3000),
        (Some(by_usage()), 0.05, tokens(1000, 100), 3150),
        (Some(by_usage()), 0.5, tokens(1, 0), 3),
        (Some(by_usage()), 0.0, tokens(0, 0), 0),
        (Some(Pricing::Fixed { amount: Usd::from_micros(2000) }), 0.1, tokens(0, 0), 2200),
        (None, 0.5, tokens(1000, 1000), 0),
    ] {
        let price = Price::new(pricing, fee);
        assert_eq!(price.of(used, Duration::from_secs(9)), Usd::from_micros(micros), "{used:?}");
    }
}

#[test]
fn price_reserves_the_most_that_a_call_may_cost() {
    let price = Price::new(Some(by_usage()), 0.0);
    let limited = price.most(&request(",\"max_tokens\":100,\"n\":2"));
    assert_eq!(limited, billing::Price { known: Usd::from_micros(2 * 2 + 2000), open: false });
    let open = price.most(&request(""));
    assert_eq!(open, billing::Price { known: Usd::from_micros(4), open: true });
    let fixed = Price::new(Some(Pricing::Fixed { amount: Usd::from_micros(7) }), 0.0);
    let known = Usd::from_micros(7);
    assert_eq!(fixed.most(&request("")), billing::Price { known, open: false });
    assert_eq!(Price::new(None, 0.0).most(&request("")), billing::Price::default());
}
