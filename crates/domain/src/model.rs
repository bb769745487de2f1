//! The catalog data of a model that does not depend on the runner: slug, output type and price.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::money::Usd;

/// Maximum length of a slug, in bytes.
pub const SLUG_MAX: usize = 128;

/// The version of every model; deprecated by the specification.
pub const VERSION: &str = "0.0.1";

/// A model's identifier: 1 to 128 characters of `a-zA-Z0-9._:-` in parts separated by `/`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Slug(String);

/// The string is not a valid slug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a slug must have 1 to 128 characters of a-z A-Z 0-9 . _ : - in parts separated by /")]
pub struct InvalidSlug;

impl Slug {
    /// Returns the slug as a string.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Slug {
    type Err = InvalidSlug;
    fn from_str(text: &str) -> Result<Self, InvalidSlug> {
        let part_is_good = |part: &str| {
            !part.is_empty()
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte))
        };
        if text.len() > SLUG_MAX || !text.split('/').all(part_is_good) {
            return Err(InvalidSlug);
        }
        Ok(Self(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for Slug {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for Slug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The output type of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputType {
    String,
    Array,
    Object,
    Number,
    Boolean,
    Image,
    Audio,
    Video,
    File,
}

impl OutputType {
    /// All types.
    pub const ALL: [Self; 9] = [
        Self::String,
        Self::Array,
        Self::Object,
        Self::Number,
        Self::Boolean,
        Self::Image,
        Self::Audio,
        Self::Video,
        Self::File,
    ];

    /// Returns whether the outputs are files, which are returned as URLs.
    #[must_use]
    pub const fn is_artefact(self) -> bool {
        matches!(self, Self::Image | Self::Audio | Self::Video | Self::File)
    }

    /// Returns the name that is used in the manifest and the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Array => "array",
            Self::Object => "object",
            Self::Number => "number",
            Self::Boolean => "boolean",
            Self::Image => "image",
            Self::Audio => "audio",
            Self::Video => "video",
            Self::File => "file",
        }
    }
}

/// The result cache of a model: the manifest's `[cache]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cache {
    /// How long a result is used.
    pub ttl: Duration,
    pub scope: CacheScope,
    /// The SHA-256 of the manifest, so that a changed model gives no earlier results.
    pub version: [u8; 32],
}

/// Who shares the results in a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheScope {
    Organization,
    Key,
}

impl CacheScope {
    /// All scopes.
    pub const ALL: [Self; 2] = [Self::Organization, Self::Key];

    /// Returns the name that is used in the manifest.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Organization => "organization",
            Self::Key => "key",
        }
    }
}

/// The resource usage of a run, as reported by its runner. Unknown figures are `None`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Time that the model spent working.
    pub run_time: Duration,
    pub input_tokens: Option<u64>,
    pub output_tokens: Option<u64>,
    /// Input tokens that the model read from its cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input_tokens: Option<u64>,
    /// Reasoning tokens in the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// The length of the audio that was transcribed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio: Option<Duration>,
    /// The number of characters that were read aloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub characters: Option<u64>,
    /// The number of images that were made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<u64>,
    /// The cost reported by the provider, which takes precedence over all rates.
    pub cost: Option<Usd>,
}

/// The price of a run: the manifest's `[cost]`.
#[derive(Debug, Clone, PartialEq)]
pub enum Pricing {
    /// The same price for each successful run.
    Fixed { amount: Usd },
    /// Based on usage.
    UsageBased {
        /// Display text; `None` means `Usage-based pricing`.
        estimate: Option<String>,
        rates: Rates,
    },
}

/// Prices of usage, in dollars.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rates {
    pub per_second: Option<f64>,
    pub per_million_input_tokens: Option<f64>,
    pub per_million_output_tokens: Option<f64>,
    /// Without this price, cached tokens cost the same as other input.
    pub per_million_cached_input_tokens: Option<f64>,
    /// Without this price, reasoning costs the same as other output.
    pub per_million_reasoning_tokens: Option<f64>,
    pub per_audio_minute: Option<f64>,
    pub per_million_characters: Option<f64>,
    pub per_image: Option<f64>,
}

impl Rates {
    /// Returns the unrounded price of a run.
    fn dollars(&self, usage: &Usage) -> f64 {
        let seconds = self.per_second.unwrap_or(0.0) * usage.run_time.as_secs_f64();
        let minutes = usage.audio.unwrap_or_default().as_secs_f64() / 60.0;
        let audio = self.per_audio_minute.unwrap_or(0.0) * minutes;
        let images = self.per_image.unwrap_or(0.0) * number(usage.images.unwrap_or(0));
        let input = usage.input_tokens.unwrap_or(0);
        let output = usage.output_tokens.unwrap_or(0);
        let cached = usage.cached_input_tokens.unwrap_or(0).min(input);
        let reasoning = usage.reasoning_tokens.unwrap_or(0).min(output);
        let (of_input, of_output) = (self.per_million_input_tokens, self.per_million_output_tokens);
        let millions = [
            (of_input, input - cached),
            (self.per_million_cached_input_tokens.or(of_input), cached),
            (of_output, output - reasoning),
            (self.per_million_reasoning_tokens.or(of_output), reasoning),
            (self.per_million_characters, usage.characters.unwrap_or(0)),
        ];
        let millions = millions.map(|(rate, count)| rate.unwrap_or(0.0) * number(count) / 1e6);
        seconds + audio + images + millions.iter().sum::<f64>()
    }

    /// Returns the unrounded maximum price of a run that uses no more than `usage`. Any token may
    /// be cached or reasoning, so each token costs the higher of its two prices.
    fn most_dollars(&self, usage: &Usage) -> f64 {
        let greater =
            |one: Option<f64>, other: Option<f64>| one.into_iter().chain(other).reduce(f64::max);
        let input = greater(self.per_million_input_tokens, self.per_million_cached_input_tokens);
        let output = greater(self.per_million_output_tokens, self.per_million_reasoning_tokens);
        let most = Self {
            per_million_input_tokens: input,
            per_million_output_tokens: output,
            per_million_cached_input_tokens: input,
            per_million_reasoning_tokens: output,
            ..*self
        };
        most.dollars(usage)
    }

    /// Returns whether tokens have a price.
    #[must_use]
    pub const fn has_tokens(&self) -> bool {
        self.per_million_input_tokens.is_some()
            || self.per_million_output_tokens.is_some()
            || self.per_million_cached_input_tokens.is_some()
            || self.per_million_reasoning_tokens.is_some()
    }
}

impl Pricing {
    /// Returns the charge for a successful run. Rates are in dollars; the sum is rounded once.
    #[must_use]
    pub fn charge(&self, usage: &Usage) -> Usd {
        if let Some(reported) = usage.cost {
            return reported;
        }
        match self {
            Self::Fixed { amount } => *amount,
            Self::UsageBased { .. } => Usd::from_dollars(self.dollars(usage)).unwrap_or(Usd::ZERO),
        }
    }

    /// Returns the maximum price of a run that uses no more than `usage`.
    #[must_use]
    pub fn most(&self, usage: &Usage) -> Usd {
        match self {
            Self::Fixed { amount } => *amount,
            Self::UsageBased { .. } => Usd::from_dollars_up(self.most_dollars(usage)),
        }
    }

    /// Returns the unrounded maximum price of a run that uses no more than `usage`, in dollars.
    #[must_use]
    pub fn most_dollars(&self, usage: &Usage) -> f64 {
        match self {
            Self::Fixed { amount } => amount.dollars(),
            Self::UsageBased { rates, .. } => rates.most_dollars(usage),
        }
    }

    /// Returns whether no rates are set, so that the model must report the cost.
    #[must_use]
    pub fn is_reported(&self) -> bool {
        matches!(self, Self::UsageBased { rates, .. } if *rates == Rates::default())
    }

    /// Returns the unrounded price of a run in dollars, ignoring any reported cost.
    #[must_use]
    pub fn dollars(&self, usage: &Usage) -> f64 {
        match self {
            Self::Fixed { amount } => amount.dollars(),
            Self::UsageBased { rates, .. } => rates.dollars(usage),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
const fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_slug_permits_slashes_only_between_parts() {
        for good in ["caption", "openai/gpt-x", "a/b:latest", "qwen2.5_7b"] {
            assert_eq!(good.parse::<Slug>().unwrap().as_str(), good);
        }
        for bad in ["", "/a", "a/", "a//b", "a b", "é", "a\u{0}", &"x".repeat(129)] {
            assert_eq!(bad.parse::<Slug>(), Err(InvalidSlug), "{bad}");
        }
    }

    #[test]
    fn pricing_charges_audio_characters_and_images() {
        let rates = Rates {
            per_audio_minute: Some(0.006),
            per_million_characters: Some(15.0),
            per_image: Some(0.04),
            ..Rates::default()
        };
        let pricing = Pricing::UsageBased { estimate: None, rates };
        assert!(!pricing.is_reported() && !rates.has_tokens());
        let usage = Usage {
            audio: Some(Duration::from_secs(30)),
            characters: Some(1000),
            images: Some(2),
            ..Usage::default()
        };
        assert_eq!(pricing.charge(&usage), Usd::from_micros(3000 + 15_000 + 80_000));
        assert_eq!(pricing.charge(&Usage::default()), Usd::ZERO);
    }

    #[test]
    fn pricing_charges_cached_and_reasoning_tokens_at_their_own_rates() {
        let rates = Rates {
            per_million_input_tokens: Some(10.0),
            per_million_output_tokens: Some(20.0),
            ..Rates::default()
        };
        let of = |rates| Pricing::UsageBased { estimate: None, rates };
        let usage = Usage {
            input_tokens: Some(1000),
            cached_input_tokens: Some(800),
            output_tokens: Some(100),
            reasoning_tokens: Some(60),
            ..Usage::default()
        };
        assert_eq!(of(rates).charge(&usage), Usd::from_micros(10_000 + 2000));
        let own = Rates {
            per_million_cached_input_tokens: Some(1.0),
            per_million_reasoning_tokens: Some(40.0),
            ..rates
        };
        assert_eq!(of(own).charge(&usage), Usd::from_micros(2000 + 800 + 800 + 2400));
        // The maximum does not count on the cache, and every output token may be reasoning.
        assert_eq!(of(own).most(&usage), Usd::from_micros(10_000 + 4000));
        let more = Usage { cached_input_tokens: Some(5000), reasoning_tokens: None, ..usage };
        assert_eq!(of(own).charge(&more), Usd::from_micros(1000 + 2000), "more cached than input");
    }

    #[test]
    fn pricing_charges_usage_unless_cost_is_reported() {
        let pricing = Pricing::UsageBased {
            estimate: None,
            rates: Rates {
                per_second: Some(0.5),
                per_million_input_tokens: Some(2.0),
                per_million_output_tokens: Some(4.0),
                ..Rates::default()
            },
        };
        let mut usage = Usage {
            run_time: Duration::from_millis(1500),
            input_tokens: Some(1000),
            output_tokens: Some(500),
            ..Usage::default()
        };
        assert_eq!(pricing.charge(&usage), Usd::from_micros(750_000 + 2000 + 2000));
        usage.cost = Some(Usd::from_micros(7));
        assert_eq!(pricing.charge(&usage), Usd::from_micros(7));
        assert!(!pricing.is_reported());
        usage.cost = None;
        usage.input_tokens = Some(1);
        assert_eq!(pricing.most(&usage), Usd::from_micros(750_000 + 2 + 2000));
        let fixed = Pricing::Fixed { amount: Usd::from_micros(2000) };
        assert_eq!(fixed.charge(&Usage::default()), Usd::from_micros(2000));
        assert_eq!(fixed.most(&usage), Usd::from_micros(2000));
    }
}
