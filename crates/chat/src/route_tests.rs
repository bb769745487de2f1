//! Tests of prices.

use std::time::Duration;

use super::*;

fn by_usage() -> Pricing {
    Pricing::UsageBased {
        estimate: None,
        rates: Rates {
            per_million_input_tokens: Some(2.0),
            per_million_output_tokens: Some(10.0),
            ..Rates::default()
        },
    }
}

fn tokens(input: u64, output: u64) -> Tokens {
    Tokens { input, output, ..Tokens::default() }
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
fn price_reserves_the_maximum_cost_of_answers() {
    let per_second = || Pricing::UsageBased {
        estimate: None,
        rates: Rates {
            per_second: Some(0.01),
            per_million_output_tokens: Some(10.0),
            ..Rates::default()
        },
    };
    for (pricing, fee, answers, used, micros) in [
        (Some(by_usage()), 0.0, 1, tokens(2, 200), 2004),
        (Some(by_usage()), 0.05, 1, tokens(2, 16_384), 172_037),
        (Some(by_usage()), 0.0, 4, tokens(0, 4), 40),
        (Some(per_second()), 0.0, 2, tokens(9, 100), 201_000),
        (Some(Pricing::Fixed { amount: Usd::from_micros(7) }), 0.0, 3, tokens(5, 5), 21),
        (Some(by_usage()), 0.0, 1, tokens(u64::MAX, u64::MAX), 1_000_000_000_000_000),
        (None, 0.5, 9, tokens(1000, 1000), 0),
    ] {
        let price = Price::new(pricing, fee);
        let most = price.most(answers, used, Duration::from_secs(10));
        assert_eq!(most, billing::Price { known: Usd::from_micros(micros), open: false });
    }
}
